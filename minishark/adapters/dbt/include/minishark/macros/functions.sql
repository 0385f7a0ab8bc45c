{#- dbt's functions that DuckDB writes otherwise. -#}
{% macro minishark__current_timestamp() -%}
  now()
{%- endmacro %}

{% macro minishark__current_timestamp_in_utc_backcompat() -%}
  (current_timestamp at time zone 'utc')::timestamp
{%- endmacro %}

{% macro minishark__snapshot_string_as_time(timestamp) -%}
  {{ return("'" ~ timestamp ~ "'::timestamp") }}
{%- endmacro %}

{% macro minishark__snapshot_get_time() -%}
  now()::timestamp
{%- endmacro %}

{% macro minishark__dateadd(datepart, interval, from_date_or_timestamp) -%}
  ({{ from_date_or_timestamp }} + ({{ interval }})::bigint * interval '1 {{ datepart }}')
{%- endmacro %}

{#- Boundaries that are passed, as of the other parts: DuckDB counts whole weeks. -#}
{% macro minishark__datediff(first_date, second_date, datepart) -%}
  {%- set first, second = '(' ~ first_date ~ ')::timestamp', '(' ~ second_date ~ ')::timestamp' -%}
  {%- if datepart | lower == 'week' -%}
    (date_diff('day', date_trunc('week', {{ first }}), date_trunc('week', {{ second }})) // 7)
  {%- else -%}
    date_diff('{{ datepart }}', {{ first }}, {{ second }})
  {%- endif -%}
{%- endmacro %}

{% macro minishark__date(year, month, day) -%}
  make_date({{ year }}, {{ month }}, {{ day }})
{%- endmacro %}

{% macro minishark__last_day(date, datepart) -%}
  (date_trunc('{{ datepart }}', {{ date }}) + interval '1 {{ datepart }}' - interval '1 day')::date
{%- endmacro %}

{% macro minishark__split_part(string_text, delimiter_text, part_number) -%}
  string_split({{ string_text }}, {{ delimiter_text }})[{{ part_number }}]
{%- endmacro %}

{% macro minishark__listagg(measure, delimiter_text, order_by_clause, limit_num) -%}
  array_to_string(
    array_agg({{ measure }} {{ order_by_clause or '' }})
    {%- if limit_num %}[1:{{ limit_num }}]{% endif %},
    {{ delimiter_text }}
  )
{%- endmacro %}

{#- Statements are committed one by one: a table that is built beside the old one and renamed would
    be missing for a moment, so it is replaced in one statement. -#}
{% materialization table, adapter='minishark' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set target = this.incorporate(type='table') -%}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if existing is not none and existing.type != 'table' %}
    {% do adapter.drop_relation(existing) %}
  {% endif %}
  {% call statement('main') -%}
    {{ get_create_table_as_sql(False, target, sql) }}
  {%- endcall %}
  {% do create_indexes(target) %}
  {% do apply_grants(target, config.get('grants')) %}
  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}

{% materialization view, adapter='minishark' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set target = this.incorporate(type='view') -%}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if existing is not none and existing.type != 'view' %}
    {% do adapter.drop_relation(existing) %}
  {% endif %}
  {% call statement('main') -%}
    {{ get_create_view_as_sql(target, sql) }}
  {%- endcall %}
  {% do apply_grants(target, config.get('grants')) %}
  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}

{#- New rows are computed into a table beside the target: tables that executors can read are never
    temporary. What a run leaves that is killed, the next one replaces. -#}
{% materialization incremental, adapter='minishark' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set target = this.incorporate(type='table') -%}
  {%- set unique_key = config.get('unique_key') -%}
  {%- set on_schema_change = incremental_validate_on_schema_change(
    config.get('on_schema_change'), default='ignore'
  ) -%}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if existing is not none and existing.type != 'table' %}
    {% do adapter.drop_relation(existing) %}
    {% set existing = none %}
  {% endif %}
  {% set strategy = adapter.get_incremental_strategy_macro(
    context, config.get('incremental_strategy') or 'default'
  ) %}
  {% if existing is none or should_full_refresh() %}
    {% call statement('main') -%}
      {{ get_create_table_as_sql(False, target, sql) }}
    {%- endcall %}
    {% do create_indexes(target) %}
  {% else %}
    {% set staging = make_temp_relation(target) %}
    {% do run_query(get_create_table_as_sql(True, staging, sql)) %}
    {% set columns = process_schema_changes(on_schema_change, staging, existing) %}
    {% if not columns %}
      {% set columns = adapter.get_columns_in_relation(existing) %}
    {% endif %}
    {% call statement('main') -%}
      {{ strategy({
        'target_relation': target,
        'temp_relation': staging,
        'unique_key': unique_key,
        'dest_columns': columns,
        'incremental_predicates':
          config.get('predicates', none) or config.get('incremental_predicates', none),
      }) }}
    {%- endcall %}
    {% do adapter.drop_relation(staging) %}
  {% endif %}
  {% do apply_grants(target, config.get('grants')) %}
  {% do persist_docs(target, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}

{#- With a key, rows are merged in one statement. -#}
{% macro minishark__get_incremental_default_sql(arg_dict) -%}
  {% if arg_dict['unique_key'] %}
    {{ return(get_incremental_merge_sql(arg_dict)) }}
  {% endif %}
  {{ return(get_incremental_append_sql(arg_dict)) }}
{%- endmacro %}

{#- The rows of a batch's time take the place of those that were there; a key does not matter. -#}
{% macro minishark__get_incremental_microbatch_sql(arg_dict) -%}
  {%- set columns = get_quoted_csv(arg_dict['dest_columns'] | map(attribute='name')) -%}
  {%- set conditions = [
    config.get('event_time') ~ " >= '" ~ model.batch.event_time_start ~ "'",
    config.get('event_time') ~ " < '" ~ model.batch.event_time_end ~ "'",
  ] -%}
  {%- for each in arg_dict.get('incremental_predicates') or [] -%}
    {%- do conditions.append('(' ~ each ~ ')') -%}
  {%- endfor %}
  delete from {{ arg_dict['target_relation'] }} where {{ conditions | join(' and ') }};
  insert into {{ arg_dict['target_relation'] }} ({{ columns }})
  select {{ columns }} from {{ arg_dict['temp_relation'] }}
{%- endmacro %}

{#- As of incremental models. -#}
{% macro minishark__post_snapshot(staging_relation) -%}
  {% do adapter.drop_relation(staging_relation) %}
{%- endmacro %}

{% macro minishark__get_binding_char() -%}
  {{ return('?') }}
{%- endmacro %}

{% macro minishark__get_batch_size() -%}
  {{ return(1000) }}
{%- endmacro %}

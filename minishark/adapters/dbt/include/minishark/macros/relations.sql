{% macro minishark__get_columns_in_relation(relation) -%}
  {% call statement('get_columns_in_relation', fetch_result=True, auto_begin=False) -%}
    describe {{ relation }}
  {%- endcall %}
  {% set columns = [] %}
  {% for row in load_result('get_columns_in_relation').table %}
    {% do columns.append(api.Column(row[0], row[1])) %}
  {% endfor %}
  {{ return(columns) }}
{%- endmacro %}

{#- A table takes its old version's place in one statement. -#}
{% macro minishark__create_table_as(temporary, relation, sql) -%}
  {%- set sql_header = config.get('sql_header', none) -%}
  {%- set contract = config.get('contract') -%}
  {{ sql_header if sql_header is not none }}
  {% if contract.enforced and not temporary %}
    {{ get_assert_columns_equivalent(sql) }}
    create or replace table {{ relation }} {{ get_table_columns_and_constraints() }};
    insert into {{ relation }} {{ get_select_subquery(sql) }}
  {% else %}
    create or replace table {{ relation }} as (
      {{ sql }}
    )
  {% endif %}
{%- endmacro %}

{% macro minishark__create_view_as(relation, sql) -%}
  {%- set sql_header = config.get('sql_header', none) -%}
  {{ sql_header if sql_header is not none }}
  {%- if config.get('contract').enforced %}
    {{ get_assert_columns_equivalent(sql) }}
  {%- endif %}
  create or replace view {{ relation }} as (
    {{ sql }}
  )
{%- endmacro %}

{% macro minishark__make_temp_relation(base_relation, suffix) -%}
  {{ return(base_relation.incorporate(
    path={'identifier': base_relation.identifier ~ suffix}, type='table'
  )) }}
{%- endmacro %}

{% macro minishark__drop_relation(relation) -%}
  {% call statement('drop_relation', auto_begin=False) -%}
    drop {{ relation.type }} if exists {{ relation }} cascade
  {%- endcall %}
{%- endmacro %}

{% macro minishark__rename_relation(from_relation, to_relation) -%}
  {% call statement('rename_relation') -%}
    alter {{ from_relation.type or 'table' }} {{ from_relation }}
    rename to {{ adapter.quote(to_relation.identifier) }}
  {%- endcall %}
{%- endmacro %}

{% macro minishark__truncate_relation(relation) -%}
  {% call statement('truncate_relation') -%}
    delete from {{ relation }}
  {%- endcall %}
{%- endmacro %}

{% macro minishark__alter_column_type(relation, column_name, new_column_type) -%}
  {% call statement('alter_column_type') -%}
    alter table {{ relation }} alter column {{ adapter.quote(column_name) }}
    type {{ new_column_type }}
  {%- endcall %}
{%- endmacro %}

{% macro minishark__alter_relation_add_remove_columns(relation, add_columns, remove_columns) -%}
  {% for column in add_columns or [] %}
    {% do run_query(
      "alter table " ~ relation ~ " add column " ~ column.quoted ~ " " ~ column.expanded_data_type
    ) %}
  {% endfor %}
  {% for column in remove_columns or [] %}
    {% do run_query("alter table " ~ relation ~ " drop column " ~ column.quoted) %}
  {% endfor %}
{%- endmacro %}

{% macro minishark__alter_relation_comment(relation, comment) -%}
  comment on {{ relation.type }} {{ relation }} is '{{ comment | replace("'", "''") }}'
{%- endmacro %}

{% macro minishark__alter_column_comment(relation, column_dict) -%}
  {% set existing = adapter.get_columns_in_relation(relation) | map(attribute='name') | list %}
  {% for name in column_dict if name in existing %}
    comment on column {{ relation }}.{{ adapter.quote(name) }}
    is '{{ column_dict[name]['description'] | replace("'", "''") }}';
  {% endfor %}
{%- endmacro %}

{% macro minishark__apply_grants(relation, grant_config, should_revoke=True) -%}
  {% if grant_config %}
    {{ exceptions.raise_compiler_error(
      "minishark has no grants; remove `grants` from the configuration of " ~ relation
    ) }}
  {% endif %}
{%- endmacro %}

{% macro minishark__get_create_index_sql(relation, index_dict) -%}
  {{ exceptions.raise_compiler_error(
    "minishark has no indexes; remove `indexes` from the configuration of " ~ relation
  ) }}
{%- endmacro %}

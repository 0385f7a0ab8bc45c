{% macro minishark__create_schema(relation) -%}
  {%- call statement('create_schema') -%}
    create schema if not exists {{ relation.without_identifier() }}
  {%- endcall -%}
{%- endmacro %}

{% macro minishark__drop_schema(relation) -%}
  {%- call statement('drop_schema') -%}
    drop schema if exists {{ relation.without_identifier() }} cascade
  {%- endcall -%}
{%- endmacro %}

{% macro minishark__list_schemas(database) -%}
  {{ return(run_query(
    "select distinct schema_name from information_schema.schemata where lower(catalog_name) = lower('"
    ~ database ~ "')"
  )) }}
{%- endmacro %}

{% macro minishark__check_schema_exists(information_schema, schema) -%}
  {{ return(run_query(
    "select count(*) from information_schema.schemata where lower(catalog_name) = lower('"
    ~ information_schema.database ~ "') and lower(schema_name) = lower('" ~ schema ~ "')"
  )) }}
{%- endmacro %}

{% macro minishark__list_relations_without_caching(schema_relation) -%}
  {% call statement('list_relations_without_caching', fetch_result=True, auto_begin=False) -%}
    select
      table_catalog as database,
      table_name as name,
      table_schema as schema,
      case table_type when 'VIEW' then 'view' else 'table' end as type
    from information_schema.tables
    where lower(table_catalog) = lower('{{ schema_relation.database }}')
      and lower(table_schema) = lower('{{ schema_relation.schema }}')
      and table_type <> 'LOCAL TEMPORARY'
  {%- endcall %}
  {{ return(load_result('list_relations_without_caching').table) }}
{%- endmacro %}

{#- dbt's documentation: tables and views of some schemas, or some relations, with columns. -#}
{% macro minishark__catalog_of(database, condition) -%}
  {% set query %}
    with named as (
      select database_name, schema_name, table_name as name, 'BASE TABLE' as type, comment
      from duckdb_tables() where not internal
      union all
      select database_name, schema_name, view_name, 'VIEW', comment
      from duckdb_views() where not internal
    )
    select
      named.database_name as table_database,
      named.schema_name as table_schema,
      named.name as table_name,
      named.type as table_type,
      named.comment as table_comment,
      columns.column_name as column_name,
      columns.column_index as column_index,
      columns.data_type as column_type,
      columns.comment as column_comment,
      null::varchar as table_owner
    from named join duckdb_columns() as columns
      on columns.database_name = named.database_name
      and columns.schema_name = named.schema_name
      and columns.table_name = named.name
    where lower(named.database_name) = lower('{{ database }}') and ({{ condition }})
    order by table_schema, table_name, column_index
  {% endset %}
  {{ return(run_query(query)) }}
{%- endmacro %}

{% macro minishark__get_catalog(information_schema, schemas) -%}
  {% set conditions = [] %}
  {% for schema in schemas %}
    {% do conditions.append("lower(named.schema_name) = lower('" ~ schema ~ "')") %}
  {% endfor %}
  {{ return(minishark__catalog_of(
    information_schema.database, conditions | join(' or ') or 'false'
  )) }}
{%- endmacro %}

{% macro minishark__get_catalog_relations(information_schema, relations) -%}
  {% set conditions = [] %}
  {% for relation in relations %}
    {% set condition = "lower(named.schema_name) = lower('" ~ relation.schema ~ "')" %}
    {% if relation.identifier %}
      {% set condition =
        condition ~ " and lower(named.name) = lower('" ~ relation.identifier ~ "')" %}
    {% endif %}
    {% do conditions.append("(" ~ condition ~ ")") %}
  {% endfor %}
  {{ return(minishark__catalog_of(
    information_schema.database, conditions | join(' or ') or 'false'
  )) }}
{%- endmacro %}

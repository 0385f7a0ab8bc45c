"""Lists, maps, structs and vectors."""

from minishark.functions.templates import Template as T

_DISTINCT = "list_filter({list}, lambda x_, i_: list_position({list}, x_) = i_)"
_OVERLAP = (
    "CASE WHEN list_has_any({a1}, {a2}) THEN true"
    " WHEN len({a1}) > 0 AND len({a2}) > 0"
    " AND (len({a1}) > list_count({a1}) OR len({a2}) > list_count({a2})) THEN NULL"
    " WHEN {a1} IS NOT NULL AND {a2} IS NOT NULL THEN false END"
)

NESTED = (
    # Elements
    T(
        "size(col)",
        "cardinality({col})::BIGINT",
        "The number of elements of a list, or of entries of a map.",
    ),
    T(
        "cardinality(col)",
        "cardinality({col})::BIGINT",
        "The number of elements, or of entries of a map.",
    ),
    T("array_size(col)", "len({col})", "The number of elements of a list."),
    T("array(*cols)", "list_value({cols})", "The values as a list."),
    T(
        "get(col, index)",
        "CASE WHEN {index} >= 0 THEN list_extract({col}, {index} + 1) END",
        "An element by its position from 0; NULL if there is none.",
    ),
    T(
        "try_element_at(col, extraction)",
        "{col}[{extraction}]",
        "An element of a list by its position from 1, or of a map; NULL if there is none.",
    ),
    T("array_max(col)", "list_max({col})", "The greatest element."),
    T("array_min(col)", "list_min({col})", "The least element."),
    T(
        "array_contains(col, value: value)",
        "CASE WHEN list_contains({col}, {value}) THEN true"
        " WHEN len({col}) > list_count({col}) THEN NULL"
        " WHEN {col} IS NOT NULL AND {value} IS NOT NULL THEN false END",
        "Whether a list has an element; NULL if it has not, but a NULL.",
    ),
    T(
        "array_position(col, value: value)",
        "CASE WHEN {col} IS NOT NULL AND {value} IS NOT NULL"
        " THEN coalesce(list_position({col}, {value}), 0) END",
        "The position of an element in a list, from 1; 0 if it is not there.",
    ),
    # Changes
    T(
        "array_append(col, value: value)",
        "CASE WHEN {col} IS NOT NULL THEN list_append({col}, {value}) END",
        "One more at the end.",
    ),
    T(
        "array_prepend(col, value: value)",
        "CASE WHEN {col} IS NOT NULL THEN list_prepend({value}, {col}) END",
        "One more at the start.",
    ),
    T("array_compact(col)", "list_filter({col}, lambda x_: x_ IS NOT NULL)", "Without NULLs."),
    T(
        "array_remove(col, element: value)",
        "list_filter({col}, lambda x_: x_ IS DISTINCT FROM {element})",
        "Without the elements that are equal to one.",
    ),
    T(
        "array_insert(arr, pos, value: value)",
        "CASE WHEN {arr} IS NULL THEN NULL"
        " WHEN {pos} > len({arr}) THEN list_append(list_resize({arr}, {pos} - 1), {value})"
        " WHEN {pos} > 0"
        " THEN list_concat({arr}[1:{pos} - 1], [{value}], {arr}[{pos}:])"
        " WHEN -{pos} > len({arr}) + 1"
        " THEN list_concat([{value}], list_resize({arr}[1:0], -{pos} - len({arr}) - 1), {arr})"
        " ELSE list_concat({arr}[1:len({arr}) + {pos} + 1], [{value}],"
        " {arr}[len({arr}) + {pos} + 2:]) END",
        "With an element inserted at a position from 1, or from the end if negative.",
    ),
    T(
        "array_repeat(col, count)",
        "list_transform(range(greatest({count}, 0)), lambda i_: {col})",
        "A list of one value, several times.",
    ),
    T(
        "array_join(col, delimiter: value, null_replacement: value = None)",
        (
            "CASE WHEN {delimiter} IS NOT NULL THEN array_to_string({col}, {delimiter}) END",
            "CASE WHEN {delimiter} IS NOT NULL AND {null_replacement} IS NOT NULL THEN"
            " array_to_string(list_transform({col},"
            " lambda x_: coalesce(x_, {null_replacement})), {delimiter}) END",
        ),
        "The elements joined to one text, without NULLs, or with a text for each.",
    ),
    T(
        "slice(x, start, length)",
        "CASE WHEN {start} < 0 AND -{start} > len({x}) THEN {x}[1:0]"
        " WHEN {start} < 0 AND {length} > -{start} THEN {x}[{start}:]"
        " ELSE {x}[{start}:{start} + {length} - 1] END",
        "`length` elements from the one at `start`, counted from 1, or from the end.",
    ),
    T(
        "flatten(col)",
        "CASE WHEN len({col}) = list_count({col}) THEN flatten({col}) END",
        "The elements of all lists in a list; NULL if one of them is.",
    ),
    T(
        "sort_array(col, asc=True)",
        "CASE WHEN {asc} THEN list_sort({col}, 'ASC', 'NULLS FIRST')"
        " ELSE list_sort({col}, 'DESC', 'NULLS LAST') END",
        "Sorted; NULLs are the least.",
    ),
    # Sets
    T(
        "array_distinct(col)",
        _DISTINCT.replace("{list}", "{col}"),
        "Without duplicates, in the order of the first of each.",
    ),
    T(
        "array_union(col1, col2)",
        _DISTINCT.replace("{list}", "({col1} || {col2})"),
        "What one of the lists has, without duplicates.",
    ),
    T(
        "array_intersect(col1, col2)",
        "list_filter({col1}, lambda x_, i_: list_position({col1}, x_) = i_"
        " AND list_position({col2}, x_) IS NOT NULL)",
        "What both lists have, without duplicates.",
    ),
    T(
        "array_except(col1, col2)",
        "CASE WHEN {col2} IS NOT NULL"
        " THEN list_filter({col1}, lambda x_, i_: list_position({col1}, x_) = i_"
        " AND list_position({col2}, x_) IS NULL) END",
        "What the first list has and the second has not, without duplicates.",
    ),
    T("arrays_overlap(a1, a2)", _OVERLAP, "Whether both have an element in common."),
    # Maps
    T("map_from_arrays(col1, col2)", "map({col1}, {col2})", "A map of a list of keys and values."),
    T("map_contains_key(col, value: value)", "map_contains({col}, {value})", "Whether it has it."),
    T(
        "str_to_map(text, pairDelim: value = ',', keyValueDelim: value = ':')",
        "map_from_entries(list_transform(string_split_regex({text}, {pairDelim}), lambda p_:"
        " struct_pack(k := string_split_regex(p_, {keyValueDelim})[1],"
        " v := CASE WHEN len(string_split_regex(p_, {keyValueDelim})) > 1"
        " THEN substring(p_, length(string_split_regex(p_, {keyValueDelim})[1])"
        " + 1 + length(regexp_extract(p_, {keyValueDelim}))) END)))",
        "A map of a text such as 'a:1,b:2'.",
    ),
    # Vectors
    T(
        "vector_cosine_similarity(left, right)",
        "list_cosine_similarity({left}, {right})",
        "The cosine of the angle between two vectors.",
    ),
    T(
        "vector_inner_product(left, right)",
        "list_inner_product({left}, {right})",
        "The inner product of two vectors.",
    ),
    T(
        "vector_l2_distance(left, right)",
        "list_distance({left}, {right})",
        "The Euclidean distance of two vectors.",
    ),
    T(
        "vector_norm(vector, degree=2)",
        "list_sum(list_transform({vector}, lambda x_: abs(x_) ** {degree}))"
        " ** (1 / {degree}::DOUBLE)",
        "The norm of a vector.",
        "The degree is a positive number.",
    ),
    T(
        "vector_normalize(vector, degree=2)",
        "list_transform({vector}, lambda y_: y_ / list_sum(list_transform({vector},"
        " lambda x_: abs(x_) ** {degree})) ** (1 / {degree}::DOUBLE))",
        "The vector of length 1 in the same direction.",
        "The degree is a positive number.",
    ),
)

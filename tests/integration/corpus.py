"""SELECTs over the toy tables, by feature; each has one right answer, up to the order of rows.

A statement must leave no choice: LIMIT comes with an order over unique keys, order-sensitive
aggregates with an ORDER BY.
"""

# ruff: noqa: E501 - statements read best on one line

from __future__ import annotations

CORPUS: dict[str, tuple[str, ...]] = {
    "scan and filter": (
        "SELECT * FROM t",
        "SELECT id, s FROM t WHERE k > 3 AND v IS NOT NULL",
        "SELECT id FROM t WHERE k = 5 OR (s = 'name2' AND NOT b)",
        "SELECT id FROM t WHERE k IS NULL",
        "SELECT id FROM t WHERE k <> 5",
        "SELECT id FROM t WHERE k IS DISTINCT FROM 5",
        "SELECT id FROM t WHERE k IN (1, 3, 5, NULL)",
        "SELECT id FROM t WHERE k NOT IN (1, 3, 5)",
        "SELECT id FROM t WHERE k NOT IN (1, 3, NULL)",
        "SELECT id FROM t WHERE k BETWEEN 2 AND 4",
        "SELECT id FROM t WHERE s LIKE 'name_' AND s NOT LIKE '%3'",
        "SELECT id FROM t WHERE s ILIKE 'NAME1'",
        "SELECT id FROM t WHERE regexp_matches(s, '[24]$')",
        "SELECT id FROM t WHERE b",
        "SELECT id FROM t WHERE b IS NOT TRUE",
        "SELECT id FROM t WHERE false",
        "SELECT id FROM t WHERE NULL",
        "SELECT id FROM t WHERE k = v",
        "SELECT id FROM t WHERE d >= DATE '2020-02-29' AND m < 12.5",
        "SELECT id FROM t WHERE k IN (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)",
        "SELECT id FROM t WHERE s IN ('name1', 'name5') AND k > 2",
        "SELECT id FROM t WHERE (k, id) IN ((5, 1), (4, 3), (NULL, 5))",
        "SELECT id, k FROM t WHERE k > 2 AND k > 3 AND k < 9 AND k + id > 10",
        "FROM one",
        "TABLE r",
    ),
    "expressions": (
        "SELECT id, k + 1, -k, k * 2.5, k / 2, k // 2, k % 3, v ** 2 FROM t",
        "SELECT id, CASE WHEN k > 5 THEN 'big' WHEN k > 2 THEN 'mid' ELSE s END FROM t",
        "SELECT id, CASE k WHEN 1 THEN 10 WHEN 2 THEN 20 END FROM t",
        (
            "SELECT id, coalesce(k, -1), nullif(k, 5), ifnull(s, '?'), greatest(k, 3), least(k, v) "
            "FROM t"
        ),
        "SELECT id, s || '-' || id, upper(s), length(s), substring(s, 2, 3), s[1:2] FROM t",
        "SELECT id, regexp_replace(s, '[aeiou]', '*', 'g'), split_part(s, 'm', 1) FROM t",
        "SELECT id, CAST(v AS INTEGER), CAST(m AS VARCHAR), TRY_CAST(s AS INTEGER) FROM t",
        "SELECT id, k::VARCHAR || 'x', m::DOUBLE, v::DECIMAL(6, 1), id::TINYINT FROM t",
        "SELECT id, k = 3 AND b, k = 3 OR b, NOT b, b IS NULL FROM t",
        "SELECT id, round(v, 1), floor(v), abs(-v), sign(k - 3), sqrt(id) FROM t",
        "SELECT id, if(b, 'yes', 'no'), id IN (SELECT k FROM u) FROM t",
        "SELECT id, trim('  x '), left(s, 2), right(s, 2), repeat('a', id % 3), reverse(s) FROM t",
        "SELECT id, position('e' IN s), contains(s, 'me'), starts_with(s, 'na'), s ^@ 'n' FROM t",
        "SELECT id, concat(s, k, NULL), concat_ws('/', s, k), format('{}:{}', s, id) FROM t",
        "SELECT id & 3, id | 8, xor(id, 5), id << 2, ~id FROM t",
        "SELECT id, s COLLATE NOCASE = 'NAME1' AS same FROM t",
        "SELECT id, hash(k) = hash(k), md5(s), bar(k, 0, 11, 10) FROM t",
        "SELECT 'quote '' and \\ backslash', 'tab\tline\nend', '', 'é😀', E'a\\nb'",
        "SELECT 'a: nan, b: inf, c: Infinity}' AS x, id FROM t",
        "SELECT id, 'x: NAN, y' || s FROM t",
    ),
    "constants": (
        "SELECT 1",
        "SELECT 1 AS a, 'x' AS b, NULL AS c, 1.5 AS d, true AS e",
        (
            "SELECT 170141183460469231731687303715884105727::HUGEINT, "
            "'-170141183460469231731687303715884105728'::HUGEINT"
        ),
        (
            "SELECT 99999999999999999999999999999999999999::DECIMAL(38, 0), "
            "-0.00000000000000000000000000000000000001::DECIMAL(38, 38)"
        ),
        (
            "SELECT 18446744073709551615::UBIGINT, (-128)::TINYINT, 340282366920938463463374607431768211455"
            "::UHUGEINT"
        ),
        "SELECT 'inf'::DOUBLE, '-inf'::DOUBLE, 'nan'::DOUBLE, 'inf'::FLOAT, -0.0::DOUBLE, 1e-320",
        "SELECT id, 'inf'::DOUBLE, '-inf'::FLOAT, 'nan'::FLOAT, 0.1::FLOAT, 1e300 FROM t",
        "SELECT id FROM f WHERE x = 'inf'::DOUBLE",
        "SELECT id FROM f WHERE x > '-inf'::DOUBLE",
        "SELECT id, INTERVAL '-3 months 4 days 5.000006 seconds', INTERVAL 1 YEAR FROM t",
        (
            "SELECT id, TIMESTAMP '2020-01-01 01:02:03.456789', TIMESTAMP '0044-03-15 (BC) 12:00:00', "
            "DATE '9999-12-31', DATE '0001-01-01' FROM t"
        ),
        (
            "SELECT id, DATE 'infinity', DATE '-infinity', TIMESTAMP 'infinity', DATE '20000-01-01' "
            "FROM t"
        ),
        (
            "SELECT id, TIME '23:59:59.999999', TIMESTAMPTZ '2020-01-01 00:00:00+03', "
            "'2020-01-01 00:00:00.123456789'::TIMESTAMP_NS FROM t"
        ),
        (
            "SELECT id, '\\x00\\xFF'::BLOB, '0101'::BIT, "
            "'11111111-2222-3333-4444-555555555555'::UUID FROM t"
        ),
        "SELECT id, [1, NULL, 3], {'a': 1, 'b': [2]}, MAP {'k': 1}, []::INTEGER[] FROM t",
        "SELECT id, '{\"a\": [1, 2]}'::JSON, 'a'::ENUM('a', 'b') FROM t",
        "VALUES (1, 'a'), (2, NULL), (NULL, 'c')",
        "SELECT * FROM (VALUES (1, 2.5), (2, 3)) v(a, b) WHERE a > 1",
        "SELECT 1 WHERE false",
        "SELECT count(*) FROM (SELECT 1 WHERE false)",
        "SELECT 1 + 1 AS two UNION ALL SELECT 3",
        "SELECT id, 5 AS five, five + 1 AS six FROM t WHERE six = 6",
        "SELECT d + 1, d - DATE '2020-01-01', d + INTERVAL 1 MONTH, -(-1), - -1.5 FROM t",
        "SELECT m - -1.25, m + 1.5, m * -2.5, m / 3, -m, m % 0.7 FROM t",
    ),
    "inner joins": (
        "SELECT t.id, u.id, name FROM t JOIN u ON t.k = u.k",
        "SELECT t.id, u.id FROM t JOIN u USING (k)",
        "SELECT * FROM t NATURAL JOIN nn",
        "SELECT t.id, u.id FROM t, u WHERE t.k = u.k AND t.id < u.w",
        "SELECT t.id, u.id FROM t JOIN u ON t.k = u.k AND t.v > u.w",
        "SELECT t.id, u.id, r.label FROM t JOIN u ON t.k = u.k JOIN r ON r.k = u.k",
        "SELECT a.id, b.id FROM t a JOIN t b ON a.id = b.id + 1",
        "SELECT a.id, b.id FROM u a JOIN u b ON a.k = b.k AND a.id < b.id",
        "SELECT u.id, nn.k FROM u JOIN nn ON u.k = nn.k",
        "SELECT u.id, nn.k FROM u JOIN nn ON u.w = nn.k",
        "SELECT t.id, s.id FROM t JOIN skew s ON t.k = s.k WHERE s.id < 60",
        "SELECT t.id, u.id FROM t JOIN u ON t.k IS NOT DISTINCT FROM u.k",
        "SELECT t.id, u.id FROM t JOIN u ON t.k = u.k OR t.id = u.w",
        "SELECT t.id, u.id FROM t JOIN u ON t.k < u.k",
        "SELECT t.id, u.id FROM t JOIN u ON t.k <> u.k AND t.id % 10 = 0",
        "SELECT t.id, u.id FROM t JOIN u ON t.k BETWEEN u.k AND u.w",
        "SELECT t.id, u.id FROM t JOIN u ON abs(t.k) = abs(u.k) AND t.s <> u.name",
        "SELECT t.id, r.k FROM t CROSS JOIN r WHERE t.id < 10",
        "SELECT * FROM one, r",
        "SELECT * FROM e JOIN t ON e.a = t.k",
        "SELECT * FROM e, t",
        "SELECT a.id, b.id FROM f a JOIN f b ON a.x = b.x",
        "SELECT a.id, b.id FROM f a JOIN f b ON a.y = b.x",
        "SELECT a.id, b.id FROM nulls a JOIN nulls b ON a.a = b.a",
        "SELECT t.id, u.id FROM t JOIN u ON t.v = u.w",
        "SELECT t.id, u.id FROM t JOIN u ON t.k::BIGINT = u.w",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.iv = b.iv",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.uid = b.uid AND a.bl = b.bl",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.h = b.h AND a.big = b.big",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.st = b.st",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.li = b.li AND a.mp = b.mp",
        (
            "SELECT a.id, b.id FROM (SELECT id, to_days(30) iv FROM t WHERE id < 3) a JOIN "
            "(SELECT id, to_months(1) iv FROM u WHERE id < 3) b ON a.iv = b.iv"
        ),
        "SELECT e1.id, e2.id FROM events e1 ASOF JOIN events e2 ON e1.who = e2.who AND e1.at > e2.at",
        (
            "SELECT x.a, y.a FROM (SELECT row_number() OVER (ORDER BY id) a FROM t) x "
            "POSITIONAL JOIN (SELECT row_number() OVER (ORDER BY id) a FROM u) y"
        ),
        "SELECT count(*) FROM t JOIN u ON true",
        (
            "SELECT t.id FROM t JOIN u ON t.k = u.k JOIN nn ON nn.k = u.k JOIN skew s ON s.k = nn.k "
            "WHERE s.id < 500"
        ),
    ),
    "outer joins": (
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.k = u.k",
        "SELECT t.id, u.id FROM t RIGHT JOIN u ON t.k = u.k",
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.k = u.k",
        "SELECT k, t.id, u.id FROM t FULL JOIN u USING (k)",
        "SELECT k, t.id, nn.k FROM nn LEFT JOIN t USING (k)",
        "SELECT t.id, r.label FROM t LEFT JOIN r ON t.k = r.k",
        "SELECT t.id, r.label FROM t RIGHT JOIN r ON t.k = r.k AND t.id < 10",
        "SELECT t.id, r.label FROM r LEFT JOIN t ON t.k = r.k AND t.b",
        "SELECT t.id, r.label FROM t FULL JOIN r ON t.k = r.k AND t.id > 20",
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.k = u.k AND t.id > u.w",
        "SELECT t.id, u.id FROM t RIGHT JOIN u ON t.k = u.k AND t.id > 30",
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.k = u.k WHERE u.id IS NULL",
        "SELECT t.id, e.b FROM t LEFT JOIN e ON t.k = e.a",
        "SELECT t.id, e.b FROM e RIGHT JOIN t ON t.k = e.a",
        "SELECT t.id, e.b FROM t FULL JOIN e ON t.k = e.a",
        "SELECT e.b, r.k FROM e FULL JOIN r ON r.k = e.a",
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.id < u.id AND u.id > 37",
        "SELECT t.id, u.id FROM t RIGHT JOIN u ON t.id > u.id + 50",
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.id = u.id * 2 AND t.k < u.w",
        "SELECT t.id, u.id FROM t FULL JOIN u ON t.k IS NOT DISTINCT FROM u.k",
        "SELECT t.id, u.id FROM t LEFT JOIN u ON t.k IS NOT DISTINCT FROM u.k AND t.id > 3",
        "SELECT t.id, u.id, nn.k FROM t LEFT JOIN u ON t.k = u.k LEFT JOIN nn ON nn.k = u.k",
        "SELECT t.id, u.k, nn.k FROM u FULL JOIN nn ON u.k = nn.k LEFT JOIN t ON t.id = nn.k",
        "SELECT u.k, count(t.id) FROM u LEFT JOIN t ON t.k = u.k GROUP BY u.k",
        "SELECT t.k, count(*) FROM t LEFT JOIN u ON t.k = u.k GROUP BY t.k",
        "SELECT u.k, count(*) FROM t LEFT JOIN u ON t.k = u.k GROUP BY u.k",
        "SELECT nn.k, u.k, count(*) FROM nn FULL JOIN u ON nn.k = u.k GROUP BY ALL",
        (
            "SELECT a.k, b.k FROM nn a LEFT JOIN (SELECT k FROM nn WHERE k > 6) b ON a.k = b.k "
            "LEFT JOIN u ON b.k = u.k"
        ),
        "SELECT a.id, b.id FROM nulls a LEFT JOIN nulls b ON a.a = b.a",
        "SELECT a.id, b.id FROM nulls a FULL JOIN nulls b ON a.a = b.a AND a.b = b.b",
        (
            "SELECT e1.id, e2.id FROM events e1 ASOF LEFT JOIN events e2 "
            "ON e1.who = e2.who AND e1.at > e2.at"
        ),
    ),
    "semi and anti joins": (
        "SELECT id FROM t WHERE k IN (SELECT k FROM u)",
        "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u)",
        "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u WHERE k IS NOT NULL)",
        "SELECT id FROM t WHERE k NOT IN (SELECT a FROM e)",
        "SELECT id FROM t WHERE k NOT IN (SELECT a FROM nulls)",
        "SELECT id, k IN (SELECT k FROM u) FROM t",
        "SELECT id, k NOT IN (SELECT k FROM u WHERE k > 3) FROM t",
        "SELECT id, k IN (SELECT a FROM e), k IN (SELECT a FROM nulls) FROM t",
        "SELECT id, (k, id) IN (SELECT k, id FROM u) FROM t",
        "SELECT id FROM t WHERE (k, s) NOT IN (SELECT k, name FROM u)",
        "SELECT id, (k, s) NOT IN (SELECT k, 'name' || id FROM u) FROM t",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
        "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.w > t.id)",
        "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.w <> t.id)",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.w > t.id)",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM e)",
        "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM e)",
        "SELECT id, EXISTS (SELECT 1 FROM u WHERE u.k = t.k) FROM t",
        "SELECT id FROM t SEMI JOIN u USING (k)",
        "SELECT id FROM t ANTI JOIN u USING (k)",
        "SELECT id FROM t ANTI JOIN u ON t.k = u.k AND t.id > u.w",
        "SELECT k FROM nn WHERE k IN (SELECT k FROM u)",
        "SELECT k FROM nn WHERE k NOT IN (SELECT k FROM u WHERE k IS NOT NULL)",
        "SELECT k FROM nn ANTI JOIN skew USING (k)",
        "SELECT label FROM r WHERE k IN (SELECT k FROM skew)",
        "SELECT label FROM r WHERE k NOT IN (SELECT k FROM skew)",
        "SELECT label FROM r WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = r.k AND t.id > 50)",
        "SELECT id FROM t WHERE k > ALL (SELECT k FROM u WHERE k < 5)",
        "SELECT id FROM t WHERE k = ANY (SELECT k FROM u WHERE id < 5)",
        "SELECT id FROM t WHERE k < ANY (SELECT k FROM u)",
        "SELECT id, k < ALL (SELECT k FROM u), k >= ANY (SELECT k FROM u WHERE k > 4) FROM t",
        "SELECT id FROM t WHERE k IN (SELECT k FROM u WHERE u.w < t.id)",
        "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u WHERE u.w < t.id)",
        "SELECT id, k NOT IN (SELECT u.k FROM u WHERE u.w < t.id) FROM t",
        "SELECT id, k IN (SELECT u.k FROM u WHERE u.w = t.id) FROM t",
        "SELECT id, k NOT IN (SELECT u.k FROM u WHERE u.id = t.k) FROM t",
        "SELECT id, (k, s) IN (SELECT a, b FROM e), (k, s) NOT IN (SELECT a, b FROM nulls) FROM t",
        "SELECT id, k <> ALL (SELECT u.k FROM u WHERE u.id = t.id) FROM t",
        "SELECT id FROM t WHERE k IN (SELECT k FROM u) OR id NOT IN (SELECT k FROM nn)",
        "SELECT count(*) FROM t WHERE id IN (SELECT id FROM t WHERE k IN (SELECT k FROM nn))",
        "SELECT x, count(*) FROM (SELECT k IN (SELECT k FROM u) AS x FROM t) GROUP BY x",
    ),
    "scalar and correlated subqueries": (
        "SELECT id, (SELECT max(k) FROM u) FROM t",
        "SELECT id, (SELECT max(u.w) FROM u WHERE u.k = t.k) FROM t",
        "SELECT id, (SELECT count(*) FROM u WHERE u.k = t.k) FROM t",
        "SELECT id, (SELECT sum(u.w) + t.id FROM u WHERE u.k = t.k AND u.id > t.id) FROM t",
        "SELECT id FROM t WHERE v > (SELECT avg(v) FROM t)",
        "SELECT id FROM t WHERE v > (SELECT avg(x.v) FROM t x WHERE x.k = t.k)",
        "SELECT id, (SELECT label FROM r WHERE r.k = t.k) FROM t",
        "SELECT id, (SELECT a FROM e) FROM t",
        "SELECT id, (SELECT b FROM one), (SELECT k FROM nn WHERE k = 4) FROM t",
        "SELECT (SELECT count(*) FROM t), (SELECT sum(w) FROM u), (SELECT 'x')",
        "SELECT id, (SELECT name FROM u WHERE u.id = t.id ORDER BY name LIMIT 1) FROM t",
        "SELECT id, (SELECT list(u.id ORDER BY u.id) FROM u WHERE u.k = t.k) FROM t",
        "SELECT k, (SELECT count(*) FROM t x WHERE x.k > t.k % 7) FROM t GROUP BY k",
        "SELECT id FROM t WHERE (SELECT count(*) FROM u WHERE u.k = t.k) > 4",
        "SELECT t.id, l.total FROM t, LATERAL (SELECT sum(w) AS total FROM u WHERE u.k = t.k) l",
        (
            "SELECT t.id, l.id FROM t, LATERAL (SELECT id FROM u WHERE u.k = t.k "
            "ORDER BY id DESC LIMIT 2) l"
        ),
        (
            "SELECT t.id, l.x FROM t LEFT JOIN LATERAL (SELECT u.id AS x FROM u WHERE u.k = t.k "
            "AND u.id > t.id) l ON true"
        ),
        "SELECT t.id, l.y FROM t, LATERAL (SELECT t.id * 2 AS y) l",
        "SELECT k, sum(w) FROM u GROUP BY k HAVING sum(w) > (SELECT avg(w) FROM u)",
        "SELECT id, ARRAY(SELECT u.id FROM u WHERE u.k = t.k ORDER BY 1) FROM t",
        (
            "SELECT id, (SELECT (SELECT max(r.k) FROM r WHERE r.k < u.k) FROM u WHERE u.id = t.id) "
            "FROM t"
        ),
    ),
    "aggregates": (
        "SELECT count(*) FROM t",
        "SELECT count(*), count(k), count(DISTINCT k), sum(k), avg(k), min(k), max(k) FROM t",
        "SELECT k, count(*), sum(v), avg(v), min(s), max(d) FROM t GROUP BY k",
        "SELECT count(*), sum(a), avg(a), min(b), max(c), bool_and(a > 1), count(a) FROM e",
        "SELECT a, count(*) FROM e GROUP BY a",
        "SELECT count(a), sum(a), avg(c), min(b), stddev(c), bool_or(a > 1) FROM nulls",
        "SELECT a, count(*), sum(a) FROM nulls GROUP BY a",
        "SELECT k, x FROM (SELECT k, count(*) AS x FROM skew GROUP BY k)",
        "SELECT id % 4, k, count(*), sum(x) FROM skew GROUP BY 1, 2",
        "SELECT k % 3 AS g, sum(x), avg(x), max(x) FROM skew GROUP BY g",
        (
            "SELECT sum(k) FILTER (WHERE b), count(*) FILTER (WHERE v > 2), avg(v) FILTER (NOT b) "
            "FROM t"
        ),
        "SELECT k, sum(id) FILTER (WHERE b), stddev(v) FILTER (WHERE id > 5) FROM t GROUP BY k",
        "SELECT k, count(DISTINCT s), sum(DISTINCT v), count(*) FROM t GROUP BY k",
        "SELECT count(DISTINCT s) FROM t",
        "SELECT s, count(DISTINCT k) FROM t GROUP BY s",
        "SELECT count(DISTINCT s), count(DISTINCT k), avg(DISTINCT v) FROM t",
        "SELECT count(DISTINCT (k, s)) FROM t",
        "SELECT count(DISTINCT k) FILTER (WHERE b) FROM t",
        (
            "SELECT s, list(id ORDER BY id DESC), string_agg(k::VARCHAR, ',' ORDER BY id) FROM t "
            "GROUP BY s"
        ),
        "SELECT first(s ORDER BY id), last(s ORDER BY id), arg_max(s, id), arg_min(s, id) FROM t",
        "SELECT s, arg_max(k, id), arg_min(v, id), any_value(s) FROM t GROUP BY s",
        "SELECT max(id, 3), min(id, 2), arg_max(s, id, 2) FROM t",
        "SELECT s, max(id, 2) FROM t GROUP BY s",
        "SELECT stddev(v), stddev_pop(v), variance(v), var_pop(v), sem(v) FROM t",
        "SELECT s, stddev(v), var_samp(v), skewness(v), kurtosis(v) FROM t GROUP BY s",
        "SELECT corr(v, k), covar_samp(v, k), covar_pop(v, k), regr_slope(v, k) FROM t",
        (
            "SELECT regr_intercept(v, k), regr_count(v, k), regr_r2(v, k), regr_avgx(v, k), "
            "regr_avgy(v, k), regr_sxx(v, k), regr_syy(v, k), regr_sxy(v, k) FROM t"
        ),
        "SELECT s, corr(v, id), regr_slope(v, id), regr_count(v, k) FROM t GROUP BY s",
        "SELECT bool_and(b), bool_or(b), bit_and(id), bit_or(k), bit_xor(id) FROM t",
        "SELECT s, bool_and(b), bool_or(b), bit_and(id), bit_or(k), bit_xor(id) FROM t GROUP BY s",
        "SELECT bit_xor(h), bit_or(h), bit_and(uid::VARCHAR::UUID::VARCHAR::BLOB::BIT) FROM kinds",
        "SELECT approx_count_distinct(k), approx_count_distinct(s) FROM t",
        "SELECT s, approx_count_distinct(id) FROM t GROUP BY s",
        "SELECT median(v), quantile_cont(v, 0.25), quantile_disc(id, [0.1, 0.9]), mad(v) FROM t",
        "SELECT s, median(id), mode(k ORDER BY k) FROM t WHERE id < 30 GROUP BY s",
        "SELECT histogram(k), entropy(k) FROM t",
        "SELECT product(1 + v / 10), geomean(1 + v), fsum(v), favg(v), sumkahan(v) FROM t",
        "SELECT sum(h), max(h), avg(h), sum(big), avg(big), sum(fine), avg(fine) FROM kinds",
        "SELECT id % 3, sum(h), avg(fine), max(ub), sum(ub), min(uid), max(bl) FROM kinds GROUP BY 1",
        "SELECT min(ts), max(tz), min(tm), max(iv), avg(iv), avg(ts), avg(tm) FROM kinds",
        "SELECT min(li), max(st), min(arr), count(mp), max(li) FROM kinds",
        "SELECT iv, count(*) FROM kinds GROUP BY iv",
        "SELECT uid, bl, count(*) FROM kinds GROUP BY ALL",
        "SELECT st.p, li[1], mp['a'], count(*) FROM kinds GROUP BY ALL",
        "SELECT st, count(*) FROM kinds GROUP BY st",
        "SELECT sum(m), avg(m), min(m), max(m), sum(m * m), sum(m / 3) FROM t",
        "SELECT sum(b), sum(v > 1), avg(k) FROM (SELECT b::INTEGER b, v, k::DOUBLE k FROM t)",
        "SELECT count_if(b), countif(k > 3) FROM t",
        "SELECT x, count(*) FROM f GROUP BY x",
        "SELECT count(DISTINCT x), min(x), max(x), sum(y) FILTER (id > 6 AND id < 10) FROM f",
        "SELECT sum(x), avg(y) FROM f WHERE id < 3",
        "SELECT s, count(*) AS n FROM t GROUP BY s HAVING count(*) > 8 AND min(id) < 4",
        "SELECT k, s, count(*) FROM t GROUP BY k, s, k",
        "SELECT 'const', count(*) FROM t GROUP BY 1",
        "SELECT 'const', count(*) FROM e GROUP BY 1",
        "SELECT sum(c) FROM (SELECT k, count(*) AS c FROM t GROUP BY k)",
        "SELECT k, count(*) FROM (SELECT DISTINCT k, s FROM t) GROUP BY k",
        "SELECT k FROM t GROUP BY k",
        "SELECT max(n) FROM (SELECT count(*) n FROM u GROUP BY k, name)",
        "SELECT u.k, sum(t.id), count(DISTINCT t.s) FROM t JOIN u ON t.k = u.k GROUP BY u.k",
        "SELECT listagg(DISTINCT s, '-' ORDER BY s), list(DISTINCT k ORDER BY k) FROM t",
        "SELECT list_sort(list(DISTINCT k)) FROM t",
        "SELECT d, sum(id) FROM t GROUP BY d",
        "SELECT extract(month FROM d) AS mon, sum(m) FROM t GROUP BY mon",
        "SELECT sum(1), count(1), min('x'), max(NULL) FROM t",
        "SELECT approx_top_k(k % 2, 1) FROM u WHERE k IS NOT NULL",
    ),
    "distinct": (
        "SELECT DISTINCT k FROM t",
        "SELECT DISTINCT k, s FROM t",
        "SELECT DISTINCT k % 2, b FROM t",
        "SELECT DISTINCT 1 FROM t",
        "SELECT DISTINCT a FROM nulls",
        "SELECT DISTINCT x FROM f",
        "SELECT DISTINCT u.k FROM u JOIN nn ON u.k = nn.k",
        "SELECT DISTINCT a FROM e",
        "SELECT DISTINCT ON (s) s, id FROM t ORDER BY s, id",
        "SELECT DISTINCT ON (k) k, id, v FROM t ORDER BY k NULLS FIRST, id DESC",
        "SELECT DISTINCT s FROM t ORDER BY s LIMIT 3",
        "SELECT DISTINCT iv, uid FROM kinds",
        "SELECT count(*) FROM (SELECT DISTINCT li, st FROM kinds)",
    ),
    "grouping sets": (
        "SELECT k, b, count(*) FROM t GROUP BY GROUPING SETS ((k), (b), ())",
        (
            "SELECT id, (SELECT min(k) FROM t GROUP BY GROUPING SETS (o.id, k) HAVING o.id = k) "
            "FROM t o WHERE id < 4"
        ),
        "SELECT k, b, sum(v), avg(v) FROM t GROUP BY ROLLUP (k, b)",
        "SELECT k, b, count(DISTINCT s) FROM t GROUP BY CUBE (k, b)",
        "SELECT k, b, GROUPING(k), GROUPING(b), GROUPING(k, b), count(*) FROM t GROUP BY CUBE (k, b)",
        "SELECT k % 2 AS o, b, GROUPING(k % 2), count(*) FROM t GROUP BY ROLLUP (k % 2, b)",
        "SELECT a, b, count(*) FROM e GROUP BY ROLLUP (a, b)",
        "SELECT count(*) FROM e GROUP BY GROUPING SETS ((), ())",
        "SELECT k, count(*) FROM u GROUP BY GROUPING SETS ((k), (k), ())",
        "SELECT k, name, stddev(w), max(id) FROM u GROUP BY GROUPING SETS ((k, name), (name))",
        "SELECT k, b, count(*) FROM t GROUP BY k, ROLLUP (b)",
        "SELECT k, count(*) FROM u GROUP BY ROLLUP (k) HAVING GROUPING(k) = 1 OR k > 3",
    ),
    "windows": (
        "SELECT id, row_number() OVER (ORDER BY id) FROM t",
        (
            "SELECT id, rank() OVER (PARTITION BY k ORDER BY id), dense_rank() OVER (ORDER BY s, id) "
            "FROM t"
        ),
        (
            "SELECT id, sum(v) OVER (PARTITION BY s ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
            " FROM t"
        ),
        "SELECT id, lag(k) OVER (ORDER BY id), lead(k, 2, -1) OVER (PARTITION BY s ORDER BY id) FROM t",
        "SELECT id, avg(v) OVER w, count(*) OVER w FROM t WINDOW w AS (PARTITION BY k)",
        (
            "SELECT id, first_value(s) OVER (PARTITION BY k ORDER BY id), ntile(3) OVER (ORDER BY id) "
            "FROM t"
        ),
        "SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY id DESC) = 1",
        (
            'SELECT who, "at", sum(n) OVER (PARTITION BY who ORDER BY "at" RANGE BETWEEN INTERVAL 3 HOURS '
            "PRECEDING AND CURRENT ROW) FROM events"
        ),
        "SELECT k, sum(id), rank() OVER (ORDER BY sum(id) DESC, k) FROM t GROUP BY k",
        "SELECT count(*) OVER () FROM e",
        "SELECT id, percent_rank() OVER (ORDER BY id), cume_dist() OVER (ORDER BY k, id) FROM t",
    ),
    "order and limit": (
        "SELECT id FROM t ORDER BY id",
        "SELECT id, k FROM t ORDER BY k DESC, id",
        "SELECT id, k FROM t ORDER BY k NULLS FIRST, id DESC",
        "SELECT id, k FROM t ORDER BY k DESC NULLS LAST, id LIMIT 7",
        "SELECT id FROM t ORDER BY id LIMIT 5 OFFSET 10",
        "SELECT id FROM t ORDER BY id OFFSET 55",
        "SELECT id FROM t ORDER BY id LIMIT 0",
        "SELECT id FROM t ORDER BY id LIMIT 1000",
        "SELECT id FROM t ORDER BY id OFFSET 1000",
        "SELECT id FROM t ORDER BY id LIMIT 20%",
        "SELECT id FROM t ORDER BY id DESC LIMIT (SELECT max(k) FROM r)",
        "SELECT count(*) FROM (SELECT * FROM t LIMIT 7)",
        "SELECT count(*) FROM (SELECT * FROM t LIMIT 7 OFFSET 56)",
        "SELECT count(*) FROM (SELECT * FROM t OFFSET 50)",
        "SELECT s, id FROM t ORDER BY ALL",
        "SELECT id FROM t ORDER BY -id LIMIT 3",
        "SELECT id FROM t ORDER BY k + v, id LIMIT 9",
        "SELECT id, x FROM f ORDER BY x, id",
        "SELECT id, x FROM f ORDER BY x DESC NULLS LAST, id LIMIT 4",
        "SELECT k, count(*) AS n FROM skew GROUP BY k ORDER BY n DESC, k LIMIT 3",
        "SELECT * FROM (SELECT id, k FROM t ORDER BY id LIMIT 10) WHERE k > 3",
        "SELECT * FROM (SELECT id FROM t ORDER BY id LIMIT 10) ORDER BY id DESC LIMIT 3",
        (
            "SELECT a.id, b.id FROM (SELECT id FROM t ORDER BY id LIMIT 3) a, "
            "(SELECT id FROM u ORDER BY id DESC LIMIT 2) b"
        ),
        "SELECT t.id, u.id FROM t JOIN u ON t.k = u.k ORDER BY t.id, u.id LIMIT 11 OFFSET 4",
        "SELECT a FROM e ORDER BY a LIMIT 3",
        "SELECT id + 1 AS x FROM t ORDER BY x DESC LIMIT 4",
        "SELECT s COLLATE NOCASE AS c, id FROM t ORDER BY c, id LIMIT 12",
        "SELECT ts, iv, id FROM kinds ORDER BY iv, ts DESC",
        "SELECT li, st, id FROM kinds ORDER BY li, st, id LIMIT 15",
        "SELECT h, big, id FROM kinds ORDER BY h DESC, big LIMIT 5",
        "SELECT count(*) FROM t USING SAMPLE 100%",
        "SELECT 1 AS a ORDER BY a LIMIT 1",
        "SELECT sum(x) FROM (SELECT x FROM skew ORDER BY x DESC, id LIMIT 100)",
    ),
    "set operations": (
        "SELECT k FROM t UNION SELECT k FROM u",
        "SELECT k FROM t UNION ALL SELECT k FROM u",
        "SELECT k FROM t INTERSECT SELECT k FROM u",
        "SELECT k FROM t EXCEPT SELECT k FROM u",
        "SELECT k FROM t INTERSECT ALL SELECT k FROM u",
        "SELECT k FROM t EXCEPT ALL SELECT k FROM u",
        "SELECT k, 'a' FROM t UNION ALL SELECT w, name FROM u",
        "SELECT 1, 2.5 UNION ALL SELECT k, v FROM t",
        "(SELECT id FROM t ORDER BY id LIMIT 3) UNION ALL (SELECT id FROM u ORDER BY id DESC LIMIT 2)",
        "SELECT id FROM t UNION SELECT id FROM u ORDER BY id LIMIT 5",
        "SELECT id AS a, k AS b FROM t UNION ALL BY NAME SELECT id AS b, name AS c FROM u",
        "SELECT count(*) FROM (SELECT k FROM t UNION SELECT k FROM nn UNION SELECT a FROM e)",
        "SELECT k, count(*) FROM (SELECT k FROM t UNION ALL SELECT k FROM u) GROUP BY k",
        "SELECT a FROM e UNION ALL SELECT a FROM one",
    ),
    "common table expressions": (
        (
            "WITH x AS (SELECT k, count(*) AS n FROM t GROUP BY k) SELECT a.k, b.n FROM x a JOIN x b "
            "ON a.k = b.k + 1"
        ),
        (
            "WITH x AS MATERIALIZED (SELECT * FROM t WHERE k > 2) SELECT count(*), (SELECT max(k) FROM x) "
            "FROM x"
        ),
        (
            "WITH x AS (SELECT * FROM u), y AS (SELECT k FROM x WHERE w > 3) SELECT x.id FROM x "
            "WHERE x.k IN (SELECT k FROM y)"
        ),
        "WITH t AS (SELECT 1 AS id) SELECT * FROM t",
        (
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10) "
            "SELECT sum(n) FROM c"
        ),
        (
            "WITH RECURSIVE c(n) AS (SELECT min(id) FROM t UNION SELECT t.id FROM t JOIN c "
            "ON t.id = c.n + 2) SELECT count(*), max(n) FROM c"
        ),
        (
            "WITH x AS MATERIALIZED (SELECT k, sum(x) AS total FROM skew GROUP BY k) SELECT u.id, x.total "
            "FROM u LEFT JOIN x ON u.k = x.k WHERE x.total > (SELECT avg(total) FROM x)"
        ),
        (
            "WITH x AS MATERIALIZED (SELECT id, k FROM t ORDER BY id LIMIT 9) "
            "SELECT a.id, b.id FROM x a JOIN x b ON a.k = b.k"
        ),
        "WITH x AS NOT MATERIALIZED (SELECT k FROM t) SELECT count(*) FROM x a, x b WHERE a.k = b.k",
        (
            "WITH a AS MATERIALIZED (SELECT id, k FROM t), b AS MATERIALIZED (SELECT k, count(*) n FROM a "
            "GROUP BY k) SELECT a.id, b.n FROM a LEFT JOIN b USING (k) WHERE a.id IN (SELECT n FROM b)"
        ),
        (
            "WITH x AS MATERIALIZED (SELECT k FROM u) SELECT (SELECT count(*) FROM x), "
            "(SELECT max(k) FROM x), k FROM x WHERE k NOT IN (SELECT k FROM nn)"
        ),
    ),
    "structs": (
        "SELECT id, st FROM kinds WHERE id > 3",
        "SELECT id, {'id': id, 'Year': bl, 'a \"b': {'select': [id]}} AS x FROM kinds",
        "SELECT DISTINCT {'k': k, 's': s} AS x FROM t ORDER BY x",
        "SELECT k, list({'id': id, 'key': s} ORDER BY id), max({'id': id}) FROM t GROUP BY k",
        "SELECT a.id, b.id FROM t a JOIN t b ON {'x': a.k, 'y': a.id} = {'x': b.k, 'y': b.id + 1}",
        "SELECT x.n FROM (SELECT {'n': id, 'm': s} AS x FROM t) WHERE x.m IS NOT NULL",
        "SELECT struct_update(st, p := id + 1).p, struct_insert(st, z := id).z FROM kinds",
    ),
    "unnest and nested types": (
        "SELECT id, unnest(li) FROM kinds",
        "SELECT id, x FROM kinds, unnest(li) AS u(x)",
        "SELECT unnest([1, 2, 3])",
        "SELECT id, unnest(st) FROM kinds",
        "SELECT id, st.p, st['q'], li[1], li[-1], mp['b'], map_keys(mp), cardinality(mp) FROM kinds",
        "SELECT id, list_transform(li, lambda x: x + 1), list_filter(li, lambda x: x > 0) FROM kinds",
        "SELECT id, [x * 2 FOR x IN li IF x > 0], list_sum(li), list_contains(li, 2) FROM kinds",
        "SELECT id, len(li), array_length(arr), list_value(id, 1), {'n': id, 'm': st} FROM kinds",
        (
            "SELECT id, struct_pack(a := id), row(id, 'x'), list_sort(li), array_to_string(li, '|') "
            "FROM kinds"
        ),
        "SELECT id, MAP {id: 'x'}, map_from_entries([(id, 1)]), list_concat(li, [9]) FROM kinds",
        "SELECT * FROM range(5)",
        "SELECT r.range, t.id FROM range(3) r JOIN t ON t.k = r.range",
        "SELECT * FROM generate_series(1, 10, 3)",
        "SELECT id FROM kinds WHERE st.p = 1",
        "SELECT id FROM kinds WHERE li[3] > 5 AND mp['b'] < 15",
        "SELECT to_json(st), json_extract('{\"a\": 5}', '$.a')::INTEGER FROM kinds",
        "SELECT id, union_value(num := id) FROM kinds",
    ),
    "kinds of values": (
        "SELECT * FROM kinds WHERE id < 6",
        "SELECT * EXCLUDE (tz) FROM kinds",
        "SELECT id, h + 1, -h, h // 7, big + big, fine * 3, fine / 7, ub + 5 FROM kinds WHERE id < 7",
        "SELECT id, big::VARCHAR, h::VARCHAR, fine::VARCHAR, fine::DECIMAL(10, 2) FROM kinds",
        (
            "SELECT id, ts + INTERVAL 5 DAYS, ts - TIMESTAMP '2021-01-01', date_trunc('month', ts), "
            "extract(hour FROM ts), strftime(ts, '%Y/%m/%d'), ts::DATE, last_day(ts::DATE) FROM kinds"
        ),
        (
            "SELECT id, date_diff('day', DATE '2020-01-01', ts::DATE), age(ts, TIMESTAMP '2020-01-01'), "
            "epoch(ts), make_date(2020, 2, 1 + id), dayname(ts) FROM kinds"
        ),
        (
            "SELECT id, tm + INTERVAL 1 HOUR, iv * 2, -iv, iv + INTERVAL 1 DAY, extract(day FROM iv) "
            "FROM kinds"
        ),
        "SELECT id FROM kinds WHERE uid = '00000000-0000-0000-0000-000000000002'::UUID",
        "SELECT id FROM kinds WHERE bl = 'b1'::BLOB AND iv > INTERVAL 1 DAY",
        "SELECT id FROM kinds WHERE h > 12345678901234567890123456789",
        (
            "SELECT id FROM kinds WHERE big BETWEEN 1234567890123456789012345678 AND "
            "12345678901234567890123456780"
        ),
        "SELECT id FROM kinds WHERE ts >= TIMESTAMP '2021-03-07 00:00:00' AND tm < TIME '01:15:00'",
        "SELECT id FROM kinds WHERE tz = TIMESTAMPTZ '2021-03-04 10:06:07+00'",
        "SELECT id, bl || 'x'::BLOB, octet_length(bl), uid::VARCHAR, hex(bl) FROM kinds",
        "SELECT id, x, y, isnan(x), isinf(y), x + 1, x = x, x > y FROM f",
        "SELECT d, date_part('dow', d), d - INTERVAL 1 YEAR, strptime('2020', '%Y') FROM t",
        "SELECT id, m::DECIMAL(38, 20), m * 1.000000001, sum(m) OVER () FROM t",
        "SELECT NULL, NULL::INTEGER, NULL::VARCHAR[] FROM one",
        "SELECT a FROM (SELECT NULL AS a FROM t) GROUP BY a",
        "SELECT * FROM nulls ORDER BY id",
        "SELECT id, a + 1, b || 'x', c > 2, coalesce(a, id) FROM nulls",
    ),
    "names": (
        'SELECT * FROM "Odd ""Name"""',
        'SELECT "select", "日本 語" FROM "Odd ""Name""" WHERE "a""b" = 1',
        'SELECT "a""b", count(*), max("x;--") FROM "Odd ""Name""" GROUP BY "a""b"',
        'SELECT o."SELECT" AS "from", u.id FROM "odd ""name""" o JOIN u ON o."select" = u.w',
        "SELECT id, id FROM t",
        "SELECT t.id, u.id, t.*, u.* FROM t JOIN u ON t.id = u.id",
        "SELECT k AS id, id AS k FROM t",
        "SELECT T.ID, K AS Kk FROM T WHERE S = 'name1'",
        'SELECT id AS "日本", k AS "a b", 1 AS "1" FROM t WHERE id < 5',
        "SELECT count(*), count(*), sum(id) FROM t",
        "SELECT main.t.id FROM main.t WHERE id < 4",
        "SELECT memory.main.t.id FROM memory.main.t WHERE id < 4",
        "SELECT id, row_number() OVER (ORDER BY id) FROM main.t",
        "SELECT c0, c1 FROM (SELECT id AS c0, k AS c1 FROM t) in0 JOIN one t0 ON c0 = t0.a",
        "SELECT in0.id FROM t AS in0 JOIN u AS in1 ON in0.id = in1.id",
        "SELECT * EXCLUDE (v, s), * REPLACE (k + 1 AS k) FROM t",
        "SELECT COLUMNS('i|k') FROM u",
        "SELECT bucket, n FROM (SELECT k AS bucket, count(*) AS n FROM t GROUP BY k)",
    ),
    "other shapes": (
        "SELECT x.a + y.b FROM (SELECT 1 AS a) x, (SELECT 2 AS b) y",
        "SELECT * FROM (SELECT * FROM (SELECT id, k * 2 AS k2 FROM t) WHERE k2 > 4) WHERE id < 30",
        "SELECT k2, k2 + 1, k2 * k2 FROM (SELECT k * 2 AS k2 FROM t)",
        "SELECT id, x, x FROM (SELECT id, id * 3 AS x FROM t WHERE v > 1)",
        "PIVOT (SELECT k, name, w FROM u) ON name IN ('u0', 'u1') USING sum(w) GROUP BY k",
        "SELECT * FROM (SELECT k, name, w FROM u) PIVOT (sum(w) FOR name IN ('u0', 'u1'))",
        "UNPIVOT (SELECT id, k, w::INTEGER AS w FROM u) ON k, w",
        "SELECT count(*) FROM t, u, r WHERE t.k = u.k AND u.k = r.k AND t.id + u.id > r.k",
        "SELECT sum(n) FROM (SELECT count(*) AS n FROM skew s JOIN u ON s.k = u.k GROUP BY s.id)",
        "SELECT s.k, u.k, count(*) FROM skew s JOIN u ON s.k = u.k GROUP BY s.k, u.k",
        "SELECT s.k, count(*) FROM skew s JOIN nn ON s.k = nn.k GROUP BY s.k",
        "SELECT a.k, sum(a.x + b.x) FROM skew a JOIN skew b ON a.id = b.id GROUP BY a.k",
        "SELECT CASE WHEN count(*) > 10 THEN 'many' ELSE 'few' END, s FROM t GROUP BY s",
        "SELECT max(k) - min(k), sum(k) / count(k) FROM t",
        "SELECT id FROM t WHERE id = (SELECT max(id) FROM t)",
        (
            "SELECT t.id FROM t JOIN (SELECT k, max(id) AS top FROM t GROUP BY k) m "
            "ON t.k = m.k AND t.id = m.top"
        ),
        (
            "SELECT n_in, count(*) FROM (SELECT t.id, count(u.id) n_in FROM t LEFT JOIN u ON t.k = u.k "
            "GROUP BY t.id) GROUP BY n_in"
        ),
        "SELECT * FROM t WHERE t.k IN (SELECT k FROM u GROUP BY k HAVING sum(w) > 20)",
        "SELECT label FROM r WHERE k = (SELECT k FROM nn WHERE k = 4)",
    ),
    "ASOF and positional joins": (
        "SELECT e.id, k.id FROM events e ASOF JOIN kinds k ON e.at >= k.ts - INTERVAL 3 YEARS",
        "SELECT e.id, s.id FROM events e ASOF LEFT JOIN (SELECT id, k, x FROM skew WHERE id < 50) s ON e.n = s.k AND e.id >= s.id",
        "SELECT a.id, b.id FROM events a ASOF JOIN events b ON a.who = b.who AND a.at > b.at",
        "SELECT a.id, b.id FROM events a ASOF LEFT JOIN events b ON a.who = b.who AND a.at < b.at",
        "SELECT a.who, count(*), sum(b.n) FROM events a ASOF JOIN (FROM events WHERE n > 9) b ON a.at >= b.at GROUP BY a.who",
        "SELECT a.x, b.y FROM (SELECT unnest([1, 2, 3]) AS x) a POSITIONAL JOIN (SELECT unnest([7, 8]) AS y) b",
        "SELECT sum(a.id - b.id) FROM (FROM u ORDER BY id) a POSITIONAL JOIN (FROM u ORDER BY id) b",
    ),
    "lateral joins": (
        "SELECT u.id, x.n FROM u, LATERAL (SELECT count(*) AS n FROM t WHERE t.k = u.k) x",
        "SELECT u.id, x.id FROM u LEFT JOIN LATERAL (SELECT t.id FROM t WHERE t.k = u.k ORDER BY t.id LIMIT 1) x ON true",
        "SELECT u.id, x.i FROM u, LATERAL (SELECT unnest(range(u.k)) AS i) x WHERE u.k < 4",
        "SELECT u.id, x.v FROM u CROSS JOIN LATERAL (VALUES (u.k), (u.w)) x(v)",
        "SELECT r.k, x.s FROM r, LATERAL (SELECT sum(u.w) AS s FROM u WHERE u.k < r.k) x, LATERAL (SELECT x.s + 1 AS z) y WHERE y.z > 10",
    ),
    "pivots": (
        "SELECT * FROM (PIVOT (SELECT k, name, w FROM u) ON name IN ('u0', 'u3') USING sum(w) AS s, count(*) AS c GROUP BY k) ORDER BY k",
        "SELECT * FROM (SELECT who, n % 3 AS g, id FROM events) PIVOT (max(id), min(id) FOR g IN (0, 1, 2) GROUP BY who) ORDER BY who",
        "FROM (SELECT k, name, w FROM u) PIVOT (sum(w) FOR name IN ('u0', 'u1', 'u2'))",
        "UNPIVOT (SELECT id, k AS a, w::INTEGER AS b FROM u) ON a, b INTO NAME part VALUE amount",
        "SELECT * FROM (SELECT id, k, id + 1 AS j FROM u) UNPIVOT INCLUDE NULLS (v FOR c IN (k, j))",
        "FROM (SELECT id, k, id + 1 AS j FROM u) UNPIVOT (v FOR c IN (k, j))",
        "UNPIVOT (SELECT k, label, k * 2 AS d FROM r) ON COLUMNS(* EXCLUDE label)",
    ),
    "samples": (
        "SELECT count(*) FROM (SELECT id FROM t USING SAMPLE 7 ROWS)",
        "SELECT count(*) <= 60 FROM t TABLESAMPLE BERNOULLI(50 PERCENT) REPEATABLE (42)",
        "SELECT count(*) FROM (FROM skew USING SAMPLE reservoir(100 ROWS) REPEATABLE (7))",
        "SELECT count(*) FROM t TABLESAMPLE SYSTEM(100 PERCENT)",
        "SELECT count(*) FROM (FROM e USING SAMPLE 3 ROWS)",
    ),
    "qualify": (
        "SELECT id, k FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY id DESC) = 1",
        "SELECT k, count(*) AS n FROM t GROUP BY k QUALIFY rank() OVER (ORDER BY count(*) DESC, k) <= 3",
        "SELECT id, rn FROM (SELECT id, row_number() OVER w AS rn FROM t WINDOW w AS (PARTITION BY s ORDER BY id) QUALIFY rn % 2 = 1)",
        "SELECT DISTINCT k FROM t QUALIFY count(*) OVER (PARTITION BY k) > 5",
        "SELECT id FROM skew WHERE k <> 1 QUALIFY ntile(10) OVER (PARTITION BY k ORDER BY id) = 10",
    ),
    "lambdas and lists": (
        "SELECT id, list_reduce(li, lambda a, b: coalesce(a, 0) + coalesce(b, 0)) FROM kinds WHERE len(li) > 0",
        "SELECT k, list_transform(list(id ORDER BY id), lambda x: x * k) FROM t WHERE k IS NOT NULL GROUP BY k",
        "SELECT id, list_filter(range(id % 7), lambda x, i: x + i > 4) FROM t",
        "SELECT id, list_sort(li, 'DESC', 'NULLS LAST'), list_distinct(li), list_reverse(li), li[2:], flatten([li, li]) FROM kinds",
        "SELECT id, list_zip(li, [1, 2]), list_slice(li, 1, 2), list_position(li, 2), list_unique(li), list_has_any(li, [0, 5]) FROM kinds",
        "SELECT id, list_aggregate(li, 'sum'), list_avg(li), list_max(li), list_min(li), list_count(li), list_median(li) FROM kinds",
        "SELECT array_inner_product([1.0, 2.0]::DOUBLE[2], [3.0, 4.0]::DOUBLE[2]), array_value(1, 2), arr[1] + arr[2] FROM kinds",
        "SELECT count(*), min(len(x)) FROM (SELECT list(x ORDER BY id) AS x FROM skew GROUP BY k)",
        "SELECT li, count(*) FROM kinds GROUP BY li",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.li = b.li AND a.id < b.id",
        "SELECT DISTINCT list_transform(li, lambda x: x % 2) FROM kinds",
        "SELECT unnest([[1, 2], NULL, [3]], recursive := true)",
        "SELECT id, generate_subscripts(li, 1) AS i FROM kinds",
    ),
    "structs, maps and unions": (
        "SELECT st, count(*) FROM kinds GROUP BY st",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.st = b.st",
        "SELECT id, st.*, struct_insert(st, r := id), struct_extract(st, 'p') FROM kinds",
        "SELECT id, mp, mp['zz'], map_values(mp), map_entries(mp), element_at(mp, 'a'), map_contains(mp, 'b') FROM kinds",
        "SELECT mp, count(*) FROM kinds GROUP BY mp",
        "SELECT max(st), min(li), max(arr) FROM kinds",
        "SELECT id FROM kinds ORDER BY st NULLS FIRST, id LIMIT 7",
        "SELECT histogram(k), map_from_entries(list((id, k) ORDER BY id) FILTER (WHERE id < 4)) FROM u",
        "SELECT union_tag(x), x.num, x.str FROM (SELECT CASE WHEN id % 2 = 0 THEN id::UNION(num INTEGER, str VARCHAR) ELSE 'a' || id END AS x FROM u)",
        "SELECT unnest(st, recursive := true), unnest(li) FROM kinds",
        "SELECT {'a': {'b': [id, NULL]}}, [{'x': id}, NULL], MAP {'k': [id]} FROM kinds",
        "SELECT (id, k) IN (SELECT (id, k) FROM t) FROM u",
        "SELECT s.t.x FROM (SELECT {'t': {'x': id}} AS s FROM u) WHERE s.t.x < 5",
    ),
    "JSON": (
        "SELECT id, to_json(li), to_json({'a': k}), json_object('k', k, 'n', NULL) FROM kinds JOIN u USING (id)",
        "SELECT id, j->>'$.a.b', j->'$.c[0]', json_extract_string(j, '$.d'), json_array_length(j, '$.c') FROM (SELECT id, ('{\"a\": {\"b\": ' || id || '}, \"c\": [1, ' || id || ']}')::JSON AS j FROM u)",
        "SELECT json_type(j), json_valid(j), json_keys(j) FROM (VALUES ('{\"x\": 1}'), ('{}')) v(j)",
        "SELECT json_group_object('l' || k, k), json_group_array(k) FROM (SELECT max(k) AS k FROM u)",
        'SELECT from_json(\'{"a": 1, "b": ["x", null]}\', \'{"a": "INTEGER", "b": ["VARCHAR"]}\')',
        "SELECT j->>'k' AS k, count(*) FROM (SELECT json_object('k', k) AS j FROM t) GROUP BY ALL",
        "SELECT a.id, b.id FROM (SELECT id, to_json({'k': k}) AS j FROM t) a JOIN (SELECT id, to_json({'k': k}) AS j FROM u) b ON a.j->>'k' = b.j->>'k'",
        'SELECT key, value FROM json_each(\'{"a": 1, "b": [2]}\')',
    ),
    "time zones and intervals": (
        "SELECT id, tz AT TIME ZONE 'Asia/Tokyo', ts AT TIME ZONE 'America/New_York', timezone('UTC', ts) FROM kinds",
        "SELECT date_trunc('day', tz), count(*), min(tz), max(tz) FROM kinds GROUP BY ALL",
        "SELECT id, tz + INTERVAL 1 MONTH, tz - INTERVAL '36 hours', tz::DATE, extract(epoch FROM tz), extract(timezone FROM tz) FROM kinds",
        "SELECT iv, count(*), sum(id) FROM (SELECT to_days(id % 3) AS iv, id FROM kinds) GROUP BY iv",
        "SELECT count(*) FROM kinds WHERE iv = INTERVAL '30 days' OR iv < INTERVAL '1 month 1 day'",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.iv = b.iv WHERE a.id < 3",
        "SELECT max(iv), min(tm), max(tm), count(DISTINCT iv) FROM kinds WHERE id < 3",
        "SELECT TIMETZ '10:00:00+02' < TIMETZ '09:00:00+00', TIME '24:00:00', DATE '2024-02-29' + INTERVAL 1 YEAR",
        "SELECT generate_series FROM generate_series(TIMESTAMP '2024-01-31', TIMESTAMP '2024-05-01', INTERVAL 1 MONTH)",
        "SELECT time_bucket(INTERVAL '2 hours', events.at) AS b, count(*), sum(n) FROM events GROUP BY b ORDER BY b",
        "SELECT 'infinity'::TIMESTAMP > max(ts), '-infinity'::DATE < min(ts)::DATE, isinf('infinity'::DATE) FROM kinds",
        "SELECT id FROM kinds WHERE ts < 'infinity'::TIMESTAMP AND ts > '-infinity'::TIMESTAMP",
        "SELECT date_part(['year', 'month'], ts), to_timestamp(id), epoch_ms(ts), make_timestamp(2020, 1, 2, 3, 4, 5.5) FROM kinds",
    ),
    "wide numbers": (
        "SELECT sum(h), avg(h), min(h), max(h), count(DISTINCT h) FROM kinds",
        "SELECT h % 1000, sum(big), max(fine) FROM kinds GROUP BY h % 1000",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.h = b.h JOIN kinds c ON c.big = b.big",
        "SELECT 170141183460469231731687303715884105727::HUGEINT, 340282366920938463463374607431768211455::UHUGEINT, -170141183460469231731687303715884105728",
        "SELECT 99999999999999999999999999999999999999::DECIMAL(38, 0), 0.00000000000000000000000000000000000001::DECIMAL(38, 38)",
        "SELECT id, h::DOUBLE, big::HUGEINT, ub::UHUGEINT * 3, h & 255, xor(ub, 7), ~ub, ub << 2 FROM kinds WHERE id < 6",
        "SELECT sum(fine * 2)::DECIMAL(38, 5), avg(fine), stddev(fine), median(fine) FROM kinds",
        "SELECT big FROM kinds ORDER BY big DESC LIMIT 3",
        "SELECT id, ('1' || repeat('0', id))::BIGNUM + 1 FROM kinds WHERE id > 15",
        "SELECT product(id), bit_xor(ub), bit_and(id), bit_or(id), count_if(id > 3), favg(fine), fsum(fine) FROM kinds WHERE id > 0",
    ),
    "bits, blobs, enums and UUIDs": (
        "SELECT id, id::BIT, bit_count(id), bitstring('101', 8) | '00000111'::BIT, get_bit('0110'::BIT, 2) FROM kinds",
        "SELECT b, count(*) FROM (SELECT (id % 3)::UTINYINT::BIT AS b FROM t) GROUP BY b",
        "SELECT bitstring_agg(id, 0, 63) FROM t",
        "SELECT bl, count(*), min(uid), max(uid) FROM kinds GROUP BY bl",
        "SELECT '\\xAA\\x00b'::BLOB, encode('é'), decode('ab'::BLOB), to_base64(bl), md5(bl) FROM kinds",
        "SELECT e, count(*) FROM (SELECT ('name' || (id % 3))::ENUM('name2', 'name0', 'name1') AS e FROM t) GROUP BY e ORDER BY e",
        "SELECT s::ENUM('name0', 'name1', 'name2', 'name3', 'name4', 'name5') AS e, min(id) FROM t WHERE s IS NOT NULL GROUP BY e ORDER BY e DESC",
        "SELECT enum_range(NULL::ENUM('b', 'a')), enum_code('a'::ENUM('b', 'a')), 'b'::ENUM('b', 'a') < 'a'::ENUM('b', 'a')",
        "SELECT uid, list(id ORDER BY id) FROM kinds GROUP BY uid",
        "SELECT a.id, b.id FROM kinds a JOIN kinds b ON a.uid = b.uid AND a.bl = b.bl WHERE a.id < b.id",
    ),
    "odd values in joins and groups": (
        "SELECT a.id, b.id FROM f a JOIN f b ON a.x = b.x",
        "SELECT a.id, b.id FROM f a JOIN f b ON a.x < b.x AND a.y >= b.y",
        "SELECT count(*), count(DISTINCT x), min(x), max(x), min(y), max(y) FROM f",
        "SELECT isnan(x), count(*), list(id ORDER BY id) FROM f GROUP BY 1",
        "SELECT id, rank() OVER (ORDER BY x), first_value(id) OVER (PARTITION BY y ORDER BY id) FROM f",
        "SELECT id FROM f ORDER BY x DESC NULLS LAST, id LIMIT 6",
        "SELECT id, x IN ('nan'::DOUBLE, 0.1), x BETWEEN '-inf'::DOUBLE AND 1, greatest(x, 5), least(y, 1) FROM f",
        "SELECT a.id, b.id FROM nulls a LEFT JOIN nulls b ON a.a = b.a",
        "SELECT a.id, b.id FROM nulls a JOIN nulls b ON a.b IS NOT DISTINCT FROM b.b WHERE a.id < 3 AND b.id < 3",
        "SELECT a, b, c, count(*), sum(a), max(b), avg(c) FROM nulls GROUP BY a, b, c",
    ),
    "expressions over aggregates": (
        "SELECT k, sum(v) / nullif(count(*), 0), round(100 * count(*) / sum(count(*)) OVER (), 2) FROM t GROUP BY k",
        "SELECT k, s, count(*), grouping(k), grouping(s), grouping_id(k, s) FROM t GROUP BY ROLLUP (k, s)",
        "SELECT k, rank() OVER (PARTITION BY grouping(k, s) ORDER BY sum(m) DESC NULLS LAST, k, s) FROM t GROUP BY CUBE (k, s)",
        "SELECT id FROM t WHERE k + 1 BETWEEN 2 AND length(s) AND v * 2 BETWEEN 1 AND 7",
        "SELECT (SELECT k FROM nn WHERE k = 4), (SELECT max(label) FROM r) FROM one",
        "SELECT id, (SELECT label FROM r WHERE r.k = t.k) FROM t",
        "SELECT k, sum(CASE WHEN b THEN m ELSE 0 END) - sum(m) FILTER (WHERE NOT b) FROM t GROUP BY k HAVING bool_or(b)",
        "SELECT * FROM (SELECT k, count(*) AS n FROM t GROUP BY k) FULL JOIN (SELECT k, sum(w) AS w FROM u GROUP BY k) USING (k)",
        "SELECT approx_count_distinct(id) > 40, quantile_cont(v, [0.25, 0.5]), mode(k > 5), kurtosis(v), entropy(k), arg_max(id, v + id * 1e-6) FROM t",
        "SELECT k, string_agg(DISTINCT s, ',' ORDER BY s), list(DISTINCT b ORDER BY b), first(id ORDER BY d, id) FROM t GROUP BY ALL",
    ),
    "limits of many kinds": (
        "SELECT id FROM t ORDER BY id LIMIT 10 PERCENT",
        "SELECT id FROM t ORDER BY id LIMIT (SELECT 4) OFFSET (SELECT 2)",
        "SELECT id FROM t ORDER BY s COLLATE NOCASE DESC, id LIMIT 4",
        "SELECT count(*) FROM (SELECT id FROM skew LIMIT 2999)",
        "SELECT id FROM t ORDER BY ALL DESC LIMIT 3",
        "SELECT max_by(id, v, 2), min_by(s, id, 3), arg_max(id, id, 4) FROM t WHERE v IS NOT NULL AND id < 9",
        "FROM t SELECT id ORDER BY random() * 0, id FETCH FIRST 2 ROWS ONLY",
    ),
    "collations": (
        "SELECT count(*) FROM t WHERE s COLLATE NOCASE = 'NAME1'",
        "SELECT DISTINCT upper(s) COLLATE NOCASE AS x FROM t WHERE s IS NOT NULL",
        "SELECT x FROM (VALUES ('b'), ('A'), ('a'), ('É')) v(x) ORDER BY x COLLATE NOACCENT.NOCASE, x",
        "SELECT 'Straße' ILIKE 'STRASSE', 'é' = 'e' COLLATE NOACCENT",
    ),
}

"""Expressions whose answers PySpark has given once: `record_pyspark.py` writes them down.

Each line of a group is an expression over `F` and the columns of a table; `Window` is known, too.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = float("nan")
_NESTED = (
    "id int, xs array<int>, ys array<int>, ts array<string>, m map<string,int>, "
    "p struct<a:int,b:string>, ps array<struct<a:int,b:string>>"
)
_at = dt.datetime.fromisoformat

# Name: schema as PySpark writes it, rows.
TABLES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "n": (
        "id int, a int, b int, l bigint, x double, y double, d decimal(10,2), o boolean",
        [
            (1, 7, 3, 10, 1.5, 2.0, Decimal("1.25"), True),
            (2, -7, 3, -10, -1.5, 0.5, Decimal("-1.25"), False),
            (3, 0, 5, 0, 0.0, -3.0, Decimal("0.00"), None),
            (4, None, 2, None, None, 1.0, None, True),
            (5, 12, -5, 4611686018427387904, NAN, 7.25, Decimal("99.99"), True),
            (6, 5, 1, 1, 2.5, 1e10, Decimal("2.50"), False),
            (7, 20, 4, -1, 0.25, 0.0625, Decimal("2.55"), None),
        ],
    ),
    "t": (
        "id int, s string, u string, k int",
        [
            (1, "hello world", "o", 2),
            (2, "", "a", 1),
            (3, None, "b", 3),
            (4, "Grüße, 日本", "ü", 2),
            (5, "a,b,,c", ",", -2),
            (6, "  pad  ", " ", 0),
            (7, "x1y22z333", "2", 5),
            (8, "O'Neil \\ %_", "%", 1),
        ],
    ),
    "d": (
        "id int, d date, e date, ts timestamp_ntz, us timestamp_ntz, secs bigint",
        [
            (1, dt.date(2024, 1, 31), dt.date(2024, 2, 29), _at("2024-01-31 12:30:45"),
             _at("2024-02-29 00:00:00"), 0),
            (2, dt.date(2023, 12, 31), dt.date(2024, 1, 1), _at("2023-12-31 23:59:59"),
             _at("2024-03-31 12:00:00.000005"), 1_700_000_000),
            (3, None, dt.date(1970, 1, 1), None, _at("1970-01-01 00:00:00"), -1),
            (4, dt.date(1969, 7, 20), dt.date(2000, 2, 29), _at("1969-07-20 20:17:40"),
             _at("2000-02-29 06:07:08.123456"), None),
            (5, dt.date(2024, 3, 31), dt.date(2024, 2, 29), _at("2024-03-31 02:30:00"),
             _at("2024-02-29 02:30:00"), 86_400),
        ],
    ),
    "c": (
        _NESTED,
        [
            (1, [3, 1, 2, 3], [2, 5], ["b", "a"], {"a": 1, "b": 2}, (1, "x"), [(1, "x"), (2, "y")]),
            (2, [], [1], [], {}, (2, None), []),
            (3, None, [1, None], None, None, None, None),
            (4, [1, None, 1], [None, 1], ["x", None, "z"], {"z": None}, (None, ""), [(None, "n")]),
            (5, [5], [6], ["ü"], {"a": 5}, (5, "e"), [(7, None)]),
        ],
    ),
    "j": (
        "id int, j string, v string",
        [
            (1, '{"a": 1, "b": {"c": [1, 2, 3]}, "s": "text"}', "1,x"),
            (2, "[1, 2, 3]", "2,"),
            (3, "no json", "x,y"),
            (4, None, None),
            (5, '{"a": null, "b": {"c": []}}', "5,z"),
        ],
    ),
    "x": (
        "id int, x string, w string, j string",
        [
            (1, '<a id="7"><b>b1</b><b>2</b><c x="y">3.5</c><d/></a>', "<p>a</p>", '{"a": [1]}'),
            (2, "<a>text<b>true</b></a>", "<p><q>1</q><q>2</q></p>", '{"b": {"c": null}}'),
            (3, None, None, None),
            (4, "<a><b>-4</b></a>", "<p/>", '{"a": [], "n": null, "s": "é"}'),
        ],
    ),
    "g": (
        "k string, v int, x double, s string",
        [
            ("a", 1, 1.0, "p"), ("a", 2, 2.0, "q"), ("a", 2, 4.0, "p"), ("a", None, 8.5, None),
            ("b", 5, 1.0, "r"), ("b", 7, 2.0, "r"), ("b", 9, NAN, "s"),
            ("c", None, None, None), (None, 3, 3.0, "z"),
        ],
    ),
    "w": (
        "id int, s string",
        list(enumerate([
            "1.9", "-1.9", "1e3", "0x1", "0b1", " 12 ", "+5", "-0", "007", "", "  ", "12abc", "1.",
            ".5", "1_000", "1_0.5", "-", "128", "2147483648", "99999999999999999999", "1L", "1 2",
            "true", " TRUE ", "t", "yes", "n", "on", "0", "1", "2", "50%", "50x", "a\\b", "A_B",
            "9223372036854775807.9", "Infinity", None,
        ])),
    ),
}  # fmt: skip

WORDS = r"""
F.col("s").try_cast("tinyint")
F.col("s").try_cast("int")
F.col("s").try_cast("bigint")
F.col("s").try_cast("double")
F.col("s").try_cast("decimal(10,2)")
F.col("s").try_cast("boolean")
F.col("s").substr(1, 1).try_cast("int")
F.col("s").like("50\\%")
F.col("s").like("50%")
F.col("s").like("a\\_b")
F.col("s").ilike("a\\_b")
F.col("s").like("%\\\\%")
F.col("s").like(F.lit("50\\%"))
F.col("s").like("s")
F.col("s").like("%\\%%") | ~F.col("s").ilike("%\\_%")
"""

NUMBERS = """
F.col("y").try_cast("int")
F.col("d").cast("bigint")
(F.col("d") * -1).cast("int")
(F.col("a") / F.col("b")).cast("int")
F.sum("a").over(Window.partitionBy("b")).cast("string")
F.round(F.col("a") / 3, 2)
F.hex(F.lit(17))
F.abs("a")
F.abs("x")
F.acos("y")
F.asin("x")
F.atan("x")
F.atan2("x", "y")
F.acosh("y")
F.asinh("x")
F.atanh("x")
F.cos("x")
F.sin("x")
F.tan("x")
F.cosh("x")
F.sinh("x")
F.tanh("x")
F.cot("y")
F.sec("x")
F.csc("y")
F.cbrt("x")
F.ceil("x")
F.ceil("y")
F.ceiling("x")
F.floor("x")
F.floor("d")
F.ceil("d")
F.round("x")
F.round("d", 1)
F.round("l", -1)
F.round("x", 1)
F.bround("x")
F.bround("d", 1)
F.rint("x")
F.degrees("x")
F.radians("x")
F.exp("x")
F.expm1("x")
F.ln("x")
F.log("y")
F.log(2.0, "y")
F.log10("y")
F.log2("y")
F.log1p("x")
F.sqrt("x")
F.pow("a", "b")
F.power("x", 2)
F.hypot("x", "y")
F.pmod("a", "b")
F.negate("a")
F.negative("x")
F.positive("a")
F.sign("x")
F.signum("a")
F.factorial("b")
F.factorial("a")
F.bin("a")
F.hex("a")
F.hex("l")
F.bit_count("a")
F.bit_get("a", F.lit(1))
F.getbit("b", F.lit(0))
F.bitwise_not("a")
F.shiftleft("a", 2)
F.shiftright("a", 1)
F.shiftrightunsigned("l", 1)
F.conv(F.col("a").cast("string"), 10, 2)
F.conv(F.lit("ff"), 16, 10)
F.conv(F.lit("-1"), 10, 16)
F.conv(F.lit("-10"), 10, -2)
F.greatest("a", "b")
F.least("a", "b", "l")
F.isnan("x")
F.isnull("a")
F.isnotnull("a")
F.nanvl("x", "y")
F.nvl("a", "b")
F.nvl2("a", "b", "l")
F.ifnull("a", "b")
F.nullif("a", "b")
F.coalesce("a", "b")
F.nullifzero("a")
F.zeroifnull("a")
F.equal_null("a", "b")
F.equal_null("a", F.lit(None))
F.try_add("a", "b")
F.try_subtract("a", "b")
F.try_multiply("l", "l")
F.try_divide("a", "b")
F.try_divide("b", "a")
F.try_mod("b", "a")
F.width_bucket("x", F.lit(-2.0), F.lit(3.0), F.lit(5))
F.width_bucket("x", F.lit(3.0), F.lit(-2.0), F.lit(5))
F.e()
F.pi()
F.format_number("x", 2)
F.format_number("y", 0)
F.format_number("l", 1)
F.when(F.col("a") > 0, "pos").when(F.col("a") < 0, "neg")
F.when(F.col("a") > 0, 1).otherwise(F.col("b"))
F.crc32(F.col("a").cast("string"))
F.bitmap_bit_position("b")
F.bitmap_bucket_number("b")
F.col("a") + F.col("b")
F.col("a") - F.col("x")
F.col("a") * F.col("d")
F.col("x") / F.col("y")
F.col("a") % F.col("b")
F.col("a") / F.col("b")
2 ** F.col("b")
F.col("b") ** 2
-F.col("a")
~F.col("o")
F.col("o") & (F.col("a") > 0)
F.col("o") | (F.col("a") > 0)
F.col("a").isin(7, 0)
F.col("a").between(0, 7)
F.col("a").eqNullSafe(7)
F.col("a").bitwiseAND(3)
F.col("a").bitwiseOR(F.col("b"))
F.col("a").bitwiseXOR(1)
F.col("x") == F.col("x")
F.col("x") > 1
F.col("a").cast("string")
F.col("d").cast("int")
F.col("a").cast("boolean")
F.col("o").cast("int")
F.col("d").cast("decimal(10,1)")
F.typeof("a").isNotNull()
F.char(F.lit(65))
F.uniform(F.lit(1), F.lit(2)).isNotNull()
F.to_char("a", F.lit("99"))
F.to_char("a", F.lit("S999"))
F.to_char("a", F.lit("00PR"))
F.to_char("d", F.lit("$99.99"))
F.to_char("d", F.lit("99.99MI"))
F.to_char("d", F.lit("0,000.00S"))
F.to_char("l", F.lit("9G999"))
F.to_varchar("d", F.lit("9.9"))
F.to_char(F.lit(454.5), F.lit("9999D9"))
"""

TEXT = """
F.col("s").substr(F.col("k"), F.lit(2))
F.length(F.trim("s"))
F.upper(F.substring("s", 1, 1))
F.split("s", ",").getItem(0)
F.size(F.split("s", ","))
F.array_join(F.split("s", ""), "|")
F.concat_ws(",", F.split("s", ","))
F.col("s").isNull()
F.col("s").isin("", "a,b,,c")
F.coalesce("s", F.lit("?"))
F.when(F.col("s") == "", None).otherwise(F.col("s"))
F.nullif("s", F.lit(""))
F.lit("a") < F.col("s")
F.ascii("s")
F.base64("s")
F.base64(F.encode("s", "utf-8"))
F.unbase64(F.base64("s"))
F.bit_length("s")
F.octet_length("s")
F.char_length("s")
F.character_length("s")
F.length("s")
F.btrim("s")
F.btrim("s", F.lit("hd"))
F.trim("s")
F.ltrim("s")
F.rtrim("s")
F.trim("s", F.lit("h"))
F.concat("s", F.lit("-"), "u")
F.concat_ws("-", "s", "u")
F.contains("s", "u")
F.startswith("s", F.lit("h"))
F.endswith("s", "u")
F.decode(F.encode("s", "utf-8"), "utf-8")
F.encode("s", "UTF-8")
F.elt(F.lit(2), "s", "u")
F.find_in_set(F.lit("b"), "s")
F.find_in_set("u", F.lit("o,a,b"))
F.format_string("%s|%d", "s", "k")
F.printf(F.lit("%d-%s"), "k", "u")
F.initcap("s")
F.instr("s", "o")
F.lcase("s")
F.ucase("s")
F.lower("s")
F.upper("s")
F.left("s", F.lit(3))
F.right("s", F.lit(3))
F.left("s", "k")
F.levenshtein("s", "u")
F.levenshtein("s", F.lit("hello"), 3)
F.locate("l", "s")
F.locate("l", "s", 5)
F.position(F.lit("l"), "s")
F.position(F.lit("o"), "s", F.lit(6))
F.lpad("s", 8, "*")
F.rpad("s", 8, "*")
F.lpad("s", 3, " ")
F.mask("s")
F.mask("s", F.lit("A"), F.lit("a"), F.lit("0"))
F.overlay("s", F.lit("XX"), 3)
F.overlay("s", F.lit("XX"), 3, 4)
F.quote("u")
F.regexp_count("s", F.lit("[a-z]"))
F.regexp_extract("s", "([a-z]+)([0-9]+)", 2)
F.regexp_extract("s", "([a-z]+)", 1)
F.regexp_extract_all("s", F.lit("([a-z]+)([0-9]+)"), 1)
F.regexp_extract_all("s", F.lit("([a-z]+)([0-9]+)"), 0)
F.regexp_instr("s", F.lit("[0-9]{2}"))
F.regexp_like("s", F.lit("^h"))
F.rlike("s", F.lit("l+"))
F.regexp("s", F.lit("[0-9]"))
F.regexp_replace("s", "[aeiou]", "_")
F.regexp_replace("s", "([a-z])([0-9])", "$2$1")
F.regexp_substr("s", F.lit("[0-9]+"))
F.repeat("s", 2)
F.replace("s", F.lit("l"), F.lit("L"))
F.replace("s", F.lit("l"))
F.reverse("s")
F.soundex("s")
F.split("s", ",")
F.split("s", "[0-9]+")
F.split("s", ",", 2)
F.split("s", "l", -1)
F.split_part("s", F.lit(","), F.lit(2))
F.substr("s", F.lit(2), F.lit(3))
F.substr("s", F.lit(-3))
F.substring("s", 0, 2)
F.substring("s", 2, 3)
F.substring("s", -3, 2)
F.substring_index("s", ",", 2)
F.substring_index("s", ",", -2)
F.substring_index("s", "zz", 1)
F.translate("s", "lo", "01")
F.translate("s", "lo", "0")
F.to_binary(F.lit("616263"), F.lit("hex"))
F.to_binary("s", F.lit("utf-8"))
F.try_to_binary(F.lit("zz"), F.lit("hex"))
F.to_base32("s")
F.from_base32(F.to_base32("s"))
F.url_encode("s")
F.url_decode(F.url_encode("s"))
F.try_url_decode(F.lit("a%2Fb+c"))
F.is_valid_utf8("s")
F.make_valid_utf8("s")
F.validate_utf8("s")
F.try_validate_utf8("s")
F.like("s", F.lit("%o%"))
F.like("s", F.lit("%\\\\%%"))
F.ilike("s", F.lit("HELLO%"))
F.md5("s")
F.sha("s")
F.sha1("s")
F.sha2("s", 256)
F.sha2("s", 0)
F.sha2("s", 512)
F.crc32("s")
F.hex("s")
F.unhex(F.hex("s"))
F.col("s").like("%o%")
F.col("s").ilike("%O%")
F.col("s").rlike("[0-9]+")
F.col("s").contains("l")
F.col("s").startswith("h")
F.col("s").endswith("d")
F.col("s").substr(2, 3)
F.col("s") == "hello world"
F.col("s") < "b"
F.str_to_map("s", F.lit(","), F.lit("b"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("HOST"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("PATH"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("QUERY"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("QUERY"), F.lit("r"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("REF"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("PROTOCOL"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("FILE"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("AUTHORITY"))
F.parse_url(F.lit("https://u:p@h.org:80/p/a?q=1&r=2#f"), F.lit("USERINFO"))
F.try_parse_url(F.lit("https://h.org"), F.lit("QUERY"))
F.to_number(F.lit("1,234.5"), F.lit("9,999.9"))
F.try_to_number(F.lit("x"), F.lit("999"))
F.hmac(F.lit("key"), "s")
F.char("k")
F.try_to_date("s")
F.try_to_timestamp("s")
F.to_char(F.encode("s", "utf-8"), F.lit("hex"))
F.to_char(F.encode("u", "utf-8"), F.lit("base64"))
"""

TIMES = """
F.col("ts").cast("timestamp").cast("long")
F.year(F.lit("2024-05-06"))
F.month(F.date_format("d", "yyyy-MM-dd"))
F.hour(F.lit("2024-05-06 07:08:09"))
F.date_add(F.lit("2024-01-01"), 1)
F.datediff(F.lit("2024-01-05"), "d")
F.last_day(F.lit("2024-02-01"))
F.to_time(F.lit("01:02:03"))
F.make_time(F.lit(1), F.lit(2), F.lit(3.5))
F.time_trunc(F.lit("HOUR"), F.to_time(F.lit("01:02:03")))
F.time_diff(F.lit("MINUTE"), F.to_time(F.lit("01:02:03")), F.to_time(F.lit("02:02:02")))
F.time_to_seconds(F.to_time(F.lit("01:02:03")))
F.time_from_seconds(F.lit(3723))
F.time_to_micros(F.to_time(F.lit("01:02:03")))
F.time_from_micros(F.lit(3723000000))
F.window_time(F.window("us", "10 minutes"))
F.time_bucket(F.expr("INTERVAL 1 HOUR"), "us")
F.add_months("d", 1)
F.add_months("d", -1)
F.date_add("d", 3)
F.date_add("d", F.col("id"))
F.dateadd("d", 3)
F.date_sub("d", 3)
F.datediff("d", "e")
F.date_diff("e", "d")
F.date_format("ts", "yyyy-MM-dd HH:mm:ss")
F.date_format("d", "dd.MM.yy")
F.date_format("ts", "EEEE, d MMMM yyyy h:mm a")
F.date_format("ts", "E MMM D")
F.date_from_unix_date("id")
F.date_part(F.lit("YEAR"), "ts")
F.date_part(F.lit("dow"), "d")
F.datepart(F.lit("MONTH"), "d")
F.extract(F.lit("HOUR"), "ts")
F.date_trunc("month", "ts")
F.date_trunc("YEAR", "ts")
F.date_trunc("week", "ts")
F.date_trunc("hour", "ts")
F.date_trunc("quarter", "ts")
F.day("d")
F.dayname("d")
F.dayofmonth("d")
F.dayofweek("d")
F.dayofyear("d")
F.weekday("d")
F.weekofyear("d")
F.month("d")
F.monthname("d")
F.quarter("d")
F.year("d")
F.hour("ts")
F.minute("ts")
F.second("ts")
F.from_unixtime("secs")
F.from_unixtime("secs", "yyyy/MM/dd")
F.from_utc_timestamp("ts", "America/New_York")
F.to_utc_timestamp("ts", "Europe/Berlin")
F.convert_timezone(F.lit("Europe/Berlin"), F.lit("Asia/Tokyo"), "ts")
F.last_day("d")
F.make_date(F.lit(2024), F.lit(2), "id")
F.make_timestamp(F.lit(2024), F.lit(2), "id", F.lit(1), F.lit(2), F.lit(3.5))
F.make_timestamp_ntz(F.lit(2024), F.lit(2), "id", F.lit(1), F.lit(2), F.lit(3.5))
F.try_make_timestamp(F.lit(2024), F.lit(13), "id", F.lit(1), F.lit(2), F.lit(3.5))
F.try_make_timestamp_ntz(F.lit(2024), F.lit(2), "id", F.lit(25), F.lit(2), F.lit(3.5))
F.make_dt_interval("id", F.lit(2))
F.col("ts") + F.make_interval(F.lit(1), F.lit(2))
F.col("ts") + F.make_dt_interval(F.lit(1), F.lit(2), F.lit(3), F.lit(4.5))
F.months_between("d", "e")
F.months_between("ts", "us")
F.months_between("ts", "us", False)
F.next_day("d", "Mon")
F.next_day("d", "sunday")
F.timestamp_add("DAY", F.col("id"), "ts")
F.timestamp_add("MONTH", F.lit(1), "ts")
F.timestamp_diff("DAY", "ts", "us")
F.timestamp_diff("MONTH", "ts", "us")
F.timestamp_diff("HOUR", "us", "ts")
F.timestamp_seconds("secs")
F.timestamp_millis("secs")
F.timestamp_micros("secs")
F.to_date(F.lit("2024-02-29"))
F.to_date(F.lit("29.02.2024"), "dd.MM.yyyy")
F.to_date("ts")
F.to_timestamp(F.lit("2024-02-29 01:02:03"))
F.to_timestamp(F.lit("29/02/2024 01:02"), "dd/MM/yyyy HH:mm")
F.to_timestamp_ntz(F.lit("2024-02-29 01:02:03"))
F.try_to_timestamp(F.lit("x"))
F.try_to_date(F.lit("2024-13-01"))
F.to_unix_timestamp("ts")
F.unix_timestamp("ts")
F.unix_timestamp(F.lit("2024-02-29 01:02:03"), "yyyy-MM-dd HH:mm:ss")
F.trunc("d", "month")
F.trunc("d", "YYYY")
F.trunc("d", "week")
F.trunc("d", "quarter")
F.unix_date("d")
F.unix_seconds(F.col("ts").cast("timestamp"))
F.unix_millis(F.col("ts").cast("timestamp"))
F.unix_micros(F.col("us").cast("timestamp"))
F.window("ts", "10 minutes").start
F.window("ts", "1 hour", "1 hour", "15 minutes").end
F.col("d").cast("string")
F.col("ts").cast("date")
F.col("ts").cast("string")
F.col("d").cast("timestamp")
F.col("d") > F.lit("2024-01-01").cast("date")
F.curdate().isNotNull()
F.current_timezone().isNotNull()
F.localtimestamp().isNotNull()
F.current_date().isNotNull()
F.now().isNotNull()
F.to_char("d", F.lit("yyyy/MM/dd"))
F.session_window("ts", "10 minutes").end
F.window_time(F.session_window("us", "10 minutes"))
"""

NESTED = """
F.col("m").getItem("zz")
F.col("p")["b"]
F.vector_inner_product(F.array(F.lit(1.0).cast("float")), F.array(F.lit(3.0).cast("float")))
F.vector_norm(F.array(F.lit(3.0).cast("float"), F.lit(4.0).cast("float")))
F.vector_l2_distance(F.array(F.lit(1.0).cast("float")), F.array(F.lit(3.0).cast("float")))
F.size(F.array_distinct("xs"))
F.array_max(F.transform("xs", lambda x: -x))
F.size("ps")
F.map_from_entries(F.arrays_zip(F.map_keys("m"), F.map_values("m")))
F.array_sort(F.array("id", F.lit(3), F.lit(None)))
F.array_contains(F.array("id"), F.col("id"))
F.element_at("m", "b")
F.exists("ts", lambda t: t == "x")
F.flatten(F.array(F.array("id"), F.array(F.lit(1))))
F.greatest(F.size("xs"), F.size("ys"))
F.array("id", F.lit(2))
F.array_append("xs", 9)
F.array_append("xs", F.col("id"))
F.array_prepend("xs", 9)
F.array_compact("xs")
F.array_contains("xs", 1)
F.array_contains("ts", "a")
F.array_distinct("xs")
F.array_except("xs", "ys")
F.array_intersect("xs", "ys")
F.array_union("xs", "ys")
F.arrays_overlap("xs", "ys")
F.array_insert("xs", 2, 9)
F.array_insert("xs", -1, 9)
F.array_insert("xs", -2, 9)
F.array_insert("xs", 7, 9)
F.array_insert("xs", -7, 9)
F.array_join("ts", "-")
F.array_join("ts", "-", "?")
F.array_max("xs")
F.array_min("xs")
F.array_position("xs", 2)
F.array_remove("xs", 1)
F.array_repeat("id", 3)
F.array_repeat("p", 0)
F.array_size("xs")
F.array_sort("xs")
F.sort_array("xs")
F.sort_array("xs", False)
F.size("xs")
F.size("m")
F.cardinality("xs")
F.arrays_zip("xs", "ts")
F.flatten(F.array("xs", "ys"))
F.get("xs", 0)
F.get("xs", 7)
F.get("xs", -1)
F.element_at("m", "a")
F.element_at(F.array(F.lit(1), F.lit(2)), -1)
F.try_element_at("xs", F.lit(2))
F.try_element_at("m", F.lit("a"))
F.sequence(F.lit(1), "id")
F.sequence(F.lit(3), F.lit(1))
F.sequence(F.lit(1), F.lit(10), F.lit(3))
F.slice("xs", 2, 2)
F.slice("xs", -2, 2)
F.reverse("xs")
F.concat("xs", "ys")
F.shuffle("xs").isNull()
F.transform("xs", lambda x: x * 2)
F.transform("xs", lambda x, i: x + i)
F.filter("xs", lambda x: x > 1)
F.filter("xs", lambda x, i: i > 0)
F.exists("xs", lambda x: x > 2)
F.exists("xs", lambda x: x > 0)
F.forall("xs", lambda x: x > 0)
F.aggregate("xs", F.lit(0), lambda acc, x: acc + F.coalesce(x, F.lit(0)))
F.aggregate("xs", F.lit(0), lambda acc, x: acc + F.coalesce(x, F.lit(0)), lambda acc: acc * 10)
F.reduce("xs", F.lit(1), lambda acc, x: acc * x)
F.zip_with("xs", "ys", lambda x, y: F.coalesce(x, F.lit(0)) + F.coalesce(y, F.lit(0)))
F.map_keys("m")
F.map_values("m")
F.map_entries("m")
F.map_contains_key("m", "a")
F.map_concat("m", F.create_map(F.lit("q"), F.lit(9)))
F.map_filter("m", lambda k, v: v > 1)
F.map_from_arrays(F.array(F.lit("a"), F.lit("b")), F.array(F.lit(1), F.lit(2)))
F.map_zip_with("m", F.create_map(F.lit("a"), F.lit(10)), lambda k, v, w: v + w)
F.transform_keys("m", lambda k, v: F.upper(k))
F.transform_values("m", lambda k, v: v * 2)
F.create_map(F.lit("k"), "id")
F.struct("id", "xs")
F.struct(F.lit(1), F.lit("a"))
F.named_struct(F.lit("u"), "id", F.lit("v"), F.lit(2))
F.col("p").a
F.col("p.b")
F.col("p").getField("a")
F.col("m")["a"]
F.col("m").getItem("b")
F.col("p").withField("c", F.lit(1))
F.col("p").withField("a", F.lit("new"))
F.col("p").dropFields("a")
F.to_json("p")
F.to_json("xs")
F.to_json("m")
F.to_csv("p")
F.str_to_map(F.lit("a:1,b:2"))
F.str_to_map(F.lit("a=1;b"), F.lit(";"), F.lit("="))
"""

JSON = """
F.get_json_object("j", "$.a")
F.get_json_object("j", "$.b.c[1]")
F.get_json_object("j", "$.b")
F.get_json_object("j", "$.s")
F.json_array_length("j")
F.json_object_keys("j")
F.from_json("j", "a INT, s STRING")
F.from_json("j", "a INT, b STRUCT<c: ARRAY<INT>>")
F.from_json(F.lit("[1,2]"), "array<int>")
F.from_json(F.lit('{"x": 1}'), "map<string,int>")
F.from_csv("v", "a INT, b STRING")
F.schema_of_json(F.lit('{"a": 1, "b": [1.5]}'))
F.try_variant_get(F.try_parse_json("j"), "$.a", "int")
F.is_variant_null(F.parse_json(F.lit("null")))
"""

XML = r"""
F.xpath("x", F.lit("a/b/text()"))
F.xpath("x", F.lit("a/b"))
F.xpath("x", F.lit("a/@id"))
F.xpath("x", F.lit("/a/b[1]/text()"))
F.xpath("x", F.lit("//c/@x"))
F.xpath_string("x", F.lit("a/b"))
F.xpath_string("x", F.lit("count(a/b)"))
F.xpath_string("x", F.lit("a/b[2]"))
F.xpath_boolean("x", F.lit("a/c"))
F.xpath_boolean("x", F.lit("a/b = '2'"))
F.xpath_double("x", F.lit("sum(a/b)"))
F.xpath_double("x", F.lit("a/b | a/c"))
F.xpath_number("x", F.lit("a/c"))
F.xpath_float("x", F.lit("a/c"))
F.xpath_int("x", F.lit("a/b[last()]"))
F.xpath_long("x", F.lit("count(a/b) + count(/a/c)"))
F.xpath_short("x", F.lit("a/@id"))
F.from_xml("x", "b ARRAY<STRING>, c STRUCT<_x: STRING, _VALUE: DOUBLE>, d STRING, _id INT, q INT")
F.from_xml("x", "b STRING")
F.from_xml("x", "STRUCT<b: INT>")
F.from_xml(F.lit("no xml"), "b INT")
F.from_xml("w", "q ARRAY<BIGINT>")
F.schema_of_xml(F.lit('<p><a>1</a><a>1.5</a><b>2024-01-01</b><c t="1">true</c><f/></p>'))
F.to_xml(F.struct("id", F.lit("x<y").alias("b"), F.array("id", F.lit(2)).alias("c")))
F.to_xml(F.struct(F.lit(1).alias("_a"), F.lit("x").alias("_VALUE")), {"rowTag": "person"})
F.to_xml(F.struct(F.struct(F.lit(True).alias("e"), F.lit(None).cast("int").alias("f")).alias("d")))
F.schema_of_variant(F.parse_json("j"))
F.schema_of_variant(F.parse_json(F.lit('[1, 2.5, null]')))
F.schema_of_variant(F.parse_json(F.lit('[1, "a"]')))
F.schema_of_variant(F.parse_json(F.lit('[{"a": 1}, {"b": 2}]')))
F.schema_of_variant(F.parse_json(F.lit('12345678901234567890')))
F.to_json(F.variant_insert(F.parse_json("j"), "$.z", F.col("id")))
F.to_json(F.try_variant_insert(F.parse_json("j"), "$.a[0]", F.lit("q")))
F.to_json(F.variant_insert(F.parse_json("j"), "$.x.y[1].z", F.lit(1)))
F.to_json(F.try_variant_insert(F.parse_json("j"), "$.s", F.lit(1)))
F.to_json(F.variant_set(F.parse_json("j"), "$.a", F.array(F.lit(1), "id")))
F.to_json(F.try_variant_set(F.parse_json("j"), "$.a[2]", F.lit(True)))
F.to_json(F.variant_set(F.parse_json("j"), "$.q.r", F.lit(1.5), False))
F.to_json(F.try_variant_set(F.parse_json("j"), "$.s.t", F.lit(1)))
F.to_json(F.variant_set(F.parse_json("j"), "$.a", F.lit(None)))
F.to_json(F.variant_delete(F.parse_json("j"), "$.a[0]", "$.b.c", "$.zz"))
F.to_json(F.variant_delete(F.parse_json("j"), F.lit(None), "$['s']"))
F.to_json(F.try_variant_array_append(F.parse_json("j"), "$.a", F.lit(7)))
F.to_json(F.try_variant_array_append(F.parse_json("j"), "$.n", F.lit(7)))
F.to_json(F.variant_strip_nulls(F.parse_json("j")))
F.to_json(F.variant_strip_nulls(F.parse_json(F.lit('[1, null, {"a": null}]')), False))
F.schema_of_csv(F.lit("1,a,true,1.5,2024-01-01,,2024-01-01 01:02:03,12345678901"))
F.schema_of_csv(F.lit("1|a"), {"sep": "|"})
F.hex(F.aes_encrypt("w", F.lit("0000111122223333"), F.lit("ECB")))
F.hex(F.aes_encrypt("w", F.lit("0" * 32), F.lit("CBC"), F.lit("PKCS"), F.lit("0123456789abcdef")))
F.hex(F.aes_encrypt("w", F.lit("0" * 24), iv=F.lit("0123456789ab"), aad=F.lit("x")))
F.aes_decrypt(F.aes_encrypt("w", F.lit("0" * 16)), F.lit("0" * 16)).cast("string")
F.try_aes_decrypt(F.lit("x"), F.lit("0" * 16))
F.collate("w", "UTF8_LCASE") == F.lit("<P>A</P>")
F.collate("w", "UNICODE_CI") == F.lit("<P>A</P>")
F.collate("w", "UNICODE_AI") == F.lit("<p>ä</p>")
F.spark_partition_id() >= 0
F.pmod(F.floor(F.rand(5) * 2), F.lit(2)).isin(0, 1)
"""

AGGREGATES = """
F.percentile_approx("v", 0.25)
F.percentile_approx("v", [0.0, 0.1, 0.75, 1.0], 1000)
F.try_sum("x")
F.sum(F.col("v") * 2) + 1
F.sum("v").cast("string")
F.vector_sum(F.array(F.col("v").cast("float"), F.lit(1.5).cast("float")))
F.vector_avg(F.array(F.col("v").cast("float"), F.col("v").cast("float")))
F.histogram_numeric(F.col("v").cast("double"), F.lit(8))
F.hex(F.substring(F.bitmap_construct_agg(F.bitmap_bit_position("v")), 1, 4))
F.hex(F.substring(F.bitmap_or_agg(F.encode("s", "utf-8")), 1, 4))
F.hex(F.substring(F.bitmap_and_agg(F.encode("s", "utf-8")), 1, 4))
F.length(F.bitmap_construct_agg(F.bitmap_bit_position("v")))
F.schema_of_variant_agg(F.parse_json(F.col("v").cast("string")))
F.any_value("v", True)
F.approx_count_distinct("s")
F.avg("v")
F.mean("x")
F.bit_and("v")
F.bit_or("v")
F.bit_xor("v")
F.bool_and(F.col("v") > 1)
F.bool_or(F.col("v") > 1)
F.every(F.col("v") > 1)
F.some(F.col("v") > 1)
F.sort_array(F.collect_list("s"))
F.sort_array(F.collect_set("s"))
F.sort_array(F.array_agg("s"))
F.corr("v", "x")
F.covar_pop("v", "x")
F.covar_samp("v", "x")
F.count("v")
F.count("*")
F.count(F.lit(1))
F.countDistinct("s")
F.count_distinct("s", "v")
F.count_if(F.col("v") > 1)
F.first("v", True)
F.first_value("v", True)
F.last("v", True)
F.kurtosis("v")
F.skewness("v")
F.listagg("s", F.lit(","))
F.max("v")
F.max("x")
F.min("x")
F.max_by("s", "x")
F.min_by("s", "v")
F.median("v")
F.mode("k")
F.mode("v", True)
F.mode(F.col("v") > 1, True)
F.percentile("v", 0.5)
F.percentile("v", [0.25, 0.75])
F.percentile_approx("v", 0.5)
F.product("v")
F.regr_avgx("v", "x")
F.regr_count("v", "x")
F.regr_slope("v", "x")
F.regr_intercept("v", "x")
F.regr_r2("v", "x")
F.regr_sxx("v", "x")
F.regr_sxy("v", "x")
F.std("v")
F.stddev("v")
F.stddev_pop("v")
F.stddev_samp("v")
F.sum("v")
F.sum("x")
F.sumDistinct("v")
F.sum_distinct("v")
F.try_sum("v")
F.try_avg("v")
F.var_pop("v")
F.var_samp("v")
F.variance("v")
F.max("v") - F.min("v")
F.sum("v") / F.count("v")
F.sum(F.when(F.col("v") > 1, 1).otherwise(0))
F.round(F.avg("v"), 2)
F.coalesce(F.sum("v"), F.lit(0))
F.max(F.struct("v", "s"))
"""

WINDOWS = """
F.counter_diff("v").over(w)
F.counter_diff("v", "x").over(w)
F.try_sum("v").over(w)
F.row_number().over(w)
F.rank().over(w)
F.dense_rank().over(w)
F.percent_rank().over(w)
F.cume_dist().over(w)
F.ntile(2).over(w)
F.lag("v").over(w)
F.lag("v", 1, -1).over(w)
F.lead("v", 2).over(w)
F.nth_value("v", 2).over(w)
F.nth_value("x", 2, True).over(p.orderBy(F.desc_nulls_first("v"), "x"))
F.first("v").over(w)
F.first("v", True).over(w)
F.last("v", ignorenulls=True).over(w)
F.sum("v").over(w)
F.avg("v").over(w)
F.count("v").over(w)
F.max("x").over(p)
F.sum("v").over(p)
F.col("v") - F.avg("v").over(p)
F.sum("v").over(w.rowsBetween(-1, 0))
F.sum("v").over(w.rowsBetween(Window.unboundedPreceding, Window.currentRow))
F.sum("v").over(Window.orderBy(F.asc_nulls_first("v")).rangeBetween(-1, 1))
"""

# Name: the table, and the expressions.
GROUPS = {
    "numbers": ("n", NUMBERS),
    "text": ("t", TEXT),
    "words": ("w", WORDS),
    "times": ("d", TIMES),
    "nested": ("c", NESTED),
    "json": ("j", JSON),
    "xml": ("x", XML),
    "aggregates": ("g", AGGREGATES),
    "groups": ("g", AGGREGATES),
    "windows": ("g", WINDOWS),
}


def expressions(group: str) -> list[str]:
    """The expressions of a group."""
    return GROUPS[group][1].strip().splitlines()


def plain(value: Any) -> Any:
    """A value as JSON has it, the same whichever of the two systems returned it."""
    match value:
        case bool() | None | str() | int():
            return value
        case float():
            return {"float": "nan" if math.isnan(value) else repr(value)}
        case Decimal():
            return {"decimal": str(value.normalize() + 0)}
        case dt.datetime():
            return {"time": value.replace(tzinfo=None).isoformat(" ")}
        case dt.date() | dt.time():
            return {"time": value.isoformat()}
        case dt.timedelta():
            return {"seconds": value.total_seconds()}
        case pa.MonthDayNano(months=0, days=days, nanoseconds=nanoseconds):
            return {"seconds": days * 86_400 + nanoseconds / 1e9}
        case bytes() | bytearray():
            return {"bytes": bytes(value).hex()}
        case dict():
            return {"map": sorted(([plain(k), plain(v)] for k, v in value.items()), key=str)}
        case tuple():
            names = getattr(value, "__fields__", None) or value.names
            return {"row": [[name, plain(item)] for name, item in zip(names, value, strict=True)]}
        case list():
            return [plain(item) for item in value]
    raise TypeError(type(value))


def same(left: Any, right: Any) -> bool:
    """Whether two plain values are equal; floats and numbers of other types nearly so."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        if "float" in left:
            a, b = float(left["float"]), float(right["float"])
            return (math.isnan(a) and math.isnan(b)) or math.isclose(
                a, b, rel_tol=1e-9, abs_tol=1e-12
            )
        return all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return a == b
    return type(left) is type(right) and left == right


def number(value: Any) -> float | None:
    """A whole number, decimal or float as one kind of number; None for other values."""
    match value:
        case bool():
            return None
        case int():
            return float(value)
        case {"decimal": text} | {"float": text}:
            return float(text)
    return None

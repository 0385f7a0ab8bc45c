"""Dates, times, timestamps and intervals."""

from minishark.functions.templates import Template as T

_LOCAL = "Timestamps without a time zone are in the session's, as `SET TimeZone` says."
_SPARK_DOW = "CASE WHEN upper({field}) IN ('DAYOFWEEK', 'DOW') THEN dayofweek({source}) + 1"
_PART = f"{_SPARK_DOW} ELSE date_part({{field}}, {{source}}) END"
_PART_NOTE = "Seconds are whole, and all parts are BIGINT."
_SECONDS = "epoch({date1}::TIMESTAMP) - epoch(date_trunc('day', {date1}::TIMESTAMP))"
_BETWEEN = (
    "((year({date1}::TIMESTAMP) - year({date2}::TIMESTAMP)) * 12"
    " + month({date1}::TIMESTAMP) - month({date2}::TIMESTAMP)"
    " + CASE WHEN day({date1}::TIMESTAMP) = day({date2}::TIMESTAMP)"
    " OR (last_day({date1}::TIMESTAMP) = {date1}::DATE"
    " AND last_day({date2}::TIMESTAMP) = {date2}::DATE) THEN 0"
    " ELSE ((day({date1}::TIMESTAMP) - day({date2}::TIMESTAMP)) * 86400"
    f" + ({_SECONDS}) - ({_SECONDS.replace('date1', 'date2')})) / 2678400 END)"
)
_MADE = "make_timestamp({years}, {months}, {days}, {hours}, {mins}, {secs}::DOUBLE)"
_MADE_TZ = "make_timestamptz({years}, {months}, {days}, {hours}, {mins}, {secs}::DOUBLE)"
_MADE_IN = _MADE_TZ.removesuffix(")") + ", {timezone})"
_IN_RANGE = (
    "CASE WHEN {months} BETWEEN 1 AND 12 AND {days} BETWEEN 1 AND 31 AND {hours} BETWEEN 0 AND 23"
    " AND {mins} BETWEEN 0 AND 59 AND {secs} BETWEEN 0 AND 60"
)
_TIMES = "years, months, days, hours, mins, secs"
_INTERVAL = (
    "to_years({years}::INTEGER) + to_months({months}::INTEGER) + to_weeks({weeks}::INTEGER)"
    " + to_days({days}::INTEGER) + to_hours({hours}::BIGINT) + to_minutes({mins}::BIGINT)"
    " + to_seconds({secs}::DOUBLE)"
)
_INTERVAL_PARTS = "years=0, months=0, weeks=0, days=0, hours=0, mins=0, secs=0"
_EPOCH = "TIMESTAMP '1970-01-01'"

TIMES = (
    # Now
    T("curdate()", "current_date", "Today."),
    T("localtimestamp()", "now()::TIMESTAMP", "Now, in the session's time zone.", _LOCAL),
    T("current_time()", "now()::TIMESTAMP::TIME", "The time of day."),
    T("current_timezone()", "current_setting('TimeZone')", "The session's time zone."),
    # Parts
    T("dayname(col)", "strftime({col}, '%a')", "The day of the week: Mon, Tue ..."),
    T("monthname(col)", "strftime({col}, '%b')", "The month: Jan, Feb ..."),
    T("dayofweek(col)", "dayofweek({col}) + 1", "1 for Sunday to 7 for Saturday."),
    T("weekday(col)", "isodow({col}) - 1", "0 for Monday to 6 for Sunday."),
    T("date_part(field: value, source)", _PART, "A part, such as 'YEAR'.", _PART_NOTE),
    T("datepart(field: value, source)", _PART, "A part, such as 'YEAR'.", _PART_NOTE),
    T("extract(field: value, source)", _PART, "A part, such as 'YEAR'.", _PART_NOTE),
    # Days and months
    T("date_add(start, days)", "{start}::DATE + {days}::INTEGER", "A date some days later."),
    T("dateadd(start, days)", "{start}::DATE + {days}::INTEGER", "A date some days later."),
    T("date_sub(start, days)", "{start}::DATE - {days}::INTEGER", "A date some days earlier."),
    T("datediff(end, start)", "{end}::DATE - {start}::DATE", "The days from start to end."),
    T("date_diff(end, start)", "{end}::DATE - {start}::DATE", "The days from start to end."),
    T(
        "add_months(start, months)",
        "({start}::DATE + to_months({months}::INTEGER))::DATE",
        "A date some months later, or the last day of its month.",
    ),
    T("last_day(date)", "last_day({date}::DATE)", "The last day of a date's month."),
    T(
        "next_day(date, dayOfWeek: value)",
        "{date}::DATE + ((list_position(['mo', 'tu', 'we', 'th', 'fr', 'sa', 'su'],"
        " lower({dayOfWeek}[1:2])) - isodow({date}::DATE) + 6) % 7 + 1)::INTEGER",
        "The first later date that is the named day of the week.",
    ),
    T(
        "months_between(date1, date2, roundOff=True)",
        f"CASE WHEN {{roundOff}} THEN round({_BETWEEN}, 8) ELSE {_BETWEEN} END",
        "The months from `date2` to `date1`, as if months had 31 days.",
    ),
    T(
        "date_trunc(format: value, timestamp)",
        "date_trunc(CASE lower({format}) WHEN 'yyyy' THEN 'year' WHEN 'yy' THEN 'year'"
        " WHEN 'mon' THEN 'month' WHEN 'mm' THEN 'month' WHEN 'dd' THEN 'day' ELSE {format} END,"
        " {timestamp}::TIMESTAMP)",
        "Truncated to the 'year', 'month', 'day', 'hour' ...",
    ),
    T(
        "trunc(date, format: value)",
        "date_trunc(CASE lower({format}) WHEN 'yyyy' THEN 'year' WHEN 'yy' THEN 'year'"
        " WHEN 'mon' THEN 'month' WHEN 'mm' THEN 'month' ELSE {format} END, {date}::DATE)::DATE",
        "A date truncated to the 'year', 'quarter', 'month' or 'week'.",
    ),
    # Numbers
    T(
        "date_from_unix_date(days)",
        "DATE '1970-01-01' + {days}::INTEGER",
        "The date so many days after 1970-01-01.",
    ),
    T("unix_date(col)", "{col}::DATE - DATE '1970-01-01'", "The days since 1970-01-01."),
    T("unix_seconds(col)", "epoch_us({col}) // 1000000", "Whole seconds since 1970.", _LOCAL),
    T("unix_millis(col)", "epoch_ms({col})", "Milliseconds since 1970.", _LOCAL),
    T("unix_micros(col)", "epoch_us({col})", "Microseconds since 1970.", _LOCAL),
    T("unix_nanos(col)", "epoch_ns({col})", "Nanoseconds since 1970.", _LOCAL),
    T(
        "timestamp_seconds(col)",
        "make_timestamp(({col} * 1000000)::BIGINT)",
        "The timestamp so many seconds after 1970, in UTC.",
    ),
    T(
        "timestamp_millis(col)",
        "make_timestamp(({col} * 1000)::BIGINT)",
        "The timestamp so many milliseconds after 1970, in UTC.",
    ),
    T(
        "timestamp_micros(col)",
        "make_timestamp({col}::BIGINT)",
        "The timestamp so many microseconds after 1970, in UTC.",
    ),
    T(
        "timestamp_nanos(col)",
        "make_timestamp_ns({col}::BIGINT)",
        "The timestamp so many nanoseconds after 1970, in UTC.",
    ),
    # Time zones
    T(
        "convert_timezone(sourceTz: value, targetTz: value, sourceTs)",
        "timezone({targetTz}, timezone({sourceTz}, {sourceTs}::TIMESTAMP))",
        "A timestamp of one time zone in another.",
    ),
    T(
        "from_utc_timestamp(timestamp, tz: value)",
        "timezone({tz}, timezone('UTC', {timestamp}::TIMESTAMP))",
        "A timestamp in UTC as one of a time zone.",
    ),
    T(
        "to_utc_timestamp(timestamp, tz: value)",
        "timezone('UTC', timezone({tz}, {timestamp}::TIMESTAMP))",
        "A timestamp of a time zone as one in UTC.",
    ),
    # Made of parts
    T("make_date(year, month, day)", "make_date({year}, {month}, {day})", "A date of its parts."),
    T(
        "make_timestamp(years, months, days, hours, mins, secs, timezone = None)",
        (_MADE, f"{_MADE_IN}::TIMESTAMP"),
        "A timestamp of its parts.",
    ),
    T(f"make_timestamp_ntz({_TIMES})", _MADE, "A timestamp without a time zone."),
    T(
        f"make_timestamp_ltz({_TIMES}, timezone = None)",
        (_MADE_TZ, _MADE_IN),
        "A timestamp with a time zone.",
    ),
    T(
        f"try_make_timestamp({_TIMES}, timezone = None)",
        (f"try({_MADE})", f"try({_MADE_IN}::TIMESTAMP)"),
        "A timestamp of its parts; NULL if there is none.",
    ),
    T(f"try_make_timestamp_ntz({_TIMES})", f"try({_MADE})", "A timestamp of its parts, or NULL."),
    T(
        f"try_make_timestamp_ltz({_TIMES}, timezone = None)",
        (f"{_IN_RANGE} THEN try({_MADE_TZ}) END", f"{_IN_RANGE} THEN try({_MADE_IN}) END"),
        "A timestamp with a time zone, or NULL.",
    ),
    T(f"make_interval({_INTERVAL_PARTS})", _INTERVAL, "An interval of its parts."),
    T(f"try_make_interval({_INTERVAL_PARTS})", f"try({_INTERVAL})", "An interval, or NULL."),
    T(
        "make_dt_interval(days=0, hours=0, mins=0, secs=0)",
        "to_days({days}::INTEGER) + to_hours({hours}::BIGINT) + to_minutes({mins}::BIGINT)"
        " + to_seconds({secs}::DOUBLE)",
        "An interval of days and times.",
    ),
    T(
        "make_ym_interval(years=0, months=0)",
        "to_years({years}::INTEGER) + to_months({months}::INTEGER)",
        "An interval of years and months.",
    ),
    # Times of day
    T("time_trunc(unit: value, time)", f"date_trunc({{unit}}, {_EPOCH} + {{time}})::TIME", "Cut."),
    T(
        "time_diff(unit: value, start, end)",
        f"date_sub({{unit}}, {_EPOCH} + {{start}}, {_EPOCH} + {{end}})",
        "The whole units from start to end.",
    ),
    T(
        "time_from_seconds(col)",
        f"({_EPOCH} + to_microseconds(({{col}} * 1000000)::BIGINT))::TIME",
        "The time of day so many seconds after midnight.",
    ),
    T(
        "time_from_millis(col)",
        f"({_EPOCH} + to_microseconds({{col}}::BIGINT * 1000))::TIME",
        "The time of day so many milliseconds after midnight.",
    ),
    T(
        "time_from_micros(col)",
        f"({_EPOCH} + to_microseconds({{col}}::BIGINT))::TIME",
        "The time of day so many microseconds after midnight.",
    ),
    T("time_to_seconds(col)", "epoch_us({col}) / 1000000", "Seconds after midnight."),
    T("time_to_millis(col)", "epoch_us({col}) // 1000", "Milliseconds after midnight."),
    T("time_to_micros(col)", "epoch_us({col})", "Microseconds after midnight."),
    # Windows of time
    T(
        "window_time(windowColumn)",
        "{windowColumn}.end - INTERVAL 1 MICROSECOND",
        "The last timestamp that is in a window.",
    ),
)

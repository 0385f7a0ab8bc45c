CREATE OR REPLACE VIEW hits AS
SELECT * REPLACE (
    make_timestamp(EventTime * 1000000) AS EventTime,
    DATE '1970-01-01' + EventDate::INTEGER AS EventDate
) FROM read_parquet('hits.parquet', binary_as_string = true);

-- Grain: one row a month of departure. Delays in minutes. Idempotent.
CREATE TABLE IF NOT EXISTS iceberg.rollups.delays_by_month (
    year int,
    month int,
    flights bigint,
    cancelled bigint,
    delayed bigint COMMENT 'departed more than 15 minutes late',
    dep_delay_avg double,
    arr_delay_avg double
)
USING iceberg
PARTITIONED BY (year, month)

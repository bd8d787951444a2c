-- Grain: one row an origin, destination and month of departure. Delays in minutes. Idempotent.
CREATE TABLE IF NOT EXISTS iceberg.rollups.route_by_month (
    origin varchar,
    dest varchar,
    year integer,
    month integer,
    flights bigint,
    cancelled bigint,
    dep_delay_avg double,
    arr_delay_avg double
)
WITH (format = 'PARQUET', partitioning = ARRAY['origin'])

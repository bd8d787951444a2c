-- Brings one origin's part of route_by_month to what the raw table says now, in one commit.
-- Grain: one row an origin, destination and month. Parameter, twice: the origin.
-- The view has each row once, even while files of the raw table overlap.
-- Rows that are right already are left alone, so a second run writes nothing.
MERGE INTO iceberg.rollups.route_by_month AS kept
USING (
    WITH fresh AS (
        SELECT
            origin,
            dest,
            year,
            month,
            count(*) AS flights,
            count_if(dep_time IS NULL) AS cancelled,
            avg(dep_delay) AS dep_delay_avg,
            avg(arr_delay) AS arr_delay_avg
        FROM hive.flights.flights_exact
        WHERE origin = ? AND dest IS NOT NULL AND year IS NOT NULL AND month IS NOT NULL
        GROUP BY origin, dest, year, month
    ),
    former AS (
        SELECT origin, dest, year, month
        FROM iceberg.rollups.route_by_month
        WHERE origin = ?
    )
    SELECT
        origin,
        dest,
        year,
        month,
        fresh.flights,
        fresh.cancelled,
        fresh.dep_delay_avg,
        fresh.arr_delay_avg
    FROM fresh
    FULL JOIN former USING (origin, dest, year, month)
) AS made
ON kept.origin = made.origin
    AND kept.dest = made.dest
    AND kept.year = made.year
    AND kept.month = made.month
WHEN MATCHED AND made.flights IS NULL THEN DELETE
WHEN MATCHED AND (
    kept.flights <> made.flights
    OR kept.cancelled <> made.cancelled
    OR kept.dep_delay_avg IS DISTINCT FROM made.dep_delay_avg
    OR kept.arr_delay_avg IS DISTINCT FROM made.arr_delay_avg
) THEN UPDATE SET
    flights = made.flights,
    cancelled = made.cancelled,
    dep_delay_avg = made.dep_delay_avg,
    arr_delay_avg = made.arr_delay_avg
WHEN NOT MATCHED THEN INSERT (
    origin, dest, year, month, flights, cancelled, dep_delay_avg, arr_delay_avg
) VALUES (
    made.origin, made.dest, made.year, made.month,
    made.flights, made.cancelled, made.dep_delay_avg, made.arr_delay_avg
)

-- Are flights late because their plane was? Of the rollup of routes. Runs in Trino and in Spark.
-- Grain: one row an origin and whether the plane's last arrival was late.
SELECT
    origin,
    was_late,
    sum(flights) AS flights,
    round(sum(dep_delay_avg * (flights - cancelled)) / nullif(sum(flights - cancelled), 0), 1) AS dep_delay_avg
FROM iceberg.rollups.flights_live_routes
GROUP BY origin, was_late
ORDER BY origin, was_late

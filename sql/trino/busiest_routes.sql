-- The ten busiest routes of the year: flights and average delay in minutes.
-- Grain: one row an origin and destination.
SELECT
    origin,
    dest,
    sum(flights) AS flights,
    round(sum(dep_delay_avg * (flights - cancelled)) / nullif(sum(flights - cancelled), 0), 1)
        AS dep_delay_avg
FROM iceberg.rollups.route_by_month
GROUP BY origin, dest
ORDER BY flights DESC, origin ASC, dest ASC
LIMIT 10

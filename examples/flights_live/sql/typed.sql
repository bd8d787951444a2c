-- Flights of the typed table, and planes whose flights are not numbered 1, 2, 3 and so on, each once, as they would
-- not be if state or messages were lost or doubled. Runs in Trino and in Spark. Grain: one row.
SELECT sum(flights) AS flights, count_if(is_wrong) AS planes_wrong
FROM (
    SELECT
        tailnum,
        count(*) AS flights,
        tailnum IS NOT NULL AND (
            min(plane_flight) <> 1
            OR max(plane_flight) <> count(*)
            OR count(DISTINCT plane_flight) <> count(*)
        ) AS is_wrong
    FROM iceberg.typed.flights_live
    GROUP BY tailnum
) AS planes

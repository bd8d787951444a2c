-- The planes that fly most, of the rollup of planes. Runs in Trino and in Spark. Grain: one row a manufacturer.
SELECT manufacturer, flights, planes, round(plane_age_avg, 1) AS plane_age_avg, round(dep_delay_avg, 1) AS dep_delay_avg
FROM iceberg.rollups.flights_live_planes
WHERE manufacturer IS NOT NULL
ORDER BY flights DESC, manufacturer ASC
LIMIT 5

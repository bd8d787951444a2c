-- How many flights the rollups are made of, once all are there. Runs in Trino and in Spark. Grain: one row a rollup.
SELECT 'lines' AS rollup_name, count(*) AS row_count, sum(flights) AS flights
FROM iceberg.rollups.flights_live_lines
UNION ALL
SELECT 'planes', count(*), sum(flights)
FROM iceberg.rollups.flights_live_planes
UNION ALL
SELECT 'routes', count(*), sum(flights)
FROM iceberg.rollups.flights_live_routes

-- How much of the raw table the demo's rollups cover. Grain: one row a rollup.
SELECT 'route_by_month' AS table_name, count(*) AS row_count, sum(flights) AS flights
FROM iceberg.rollups.route_by_month
UNION ALL
SELECT 'delays_by_month', count(*), sum(flights)
FROM iceberg.rollups.delays_by_month

-- Rows and flights of each origin in route_by_month, for the metadata of a run.
SELECT origin, count(*) AS row_count, sum(flights) AS flights
FROM iceberg.rollups.route_by_month
GROUP BY origin

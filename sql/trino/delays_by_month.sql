-- Delays by month, as the rollup has them. Grain: one row a month.
SELECT year, month, flights, cancelled, delayed,
    round(dep_delay_avg, 1) AS dep_delay_avg, round(arr_delay_avg, 1) AS arr_delay_avg
FROM iceberg.rollups.delays_by_month
ORDER BY year, month

-- name: rollups.delays_by_month
-- sources: [rollups.delays_by_arrival]
-- comment: Flights and mean delays, in minutes, of each month of departure.
--
-- Grain: one row a month of departure.
SELECT
    year,
    month,
    sum(flights) AS flights,
    sum(cancelled) AS cancelled,
    sum(delayed) AS delayed,
    CAST(sum(dep_delay_sum) AS double) / nullif(sum(departed), 0) AS dep_delay_avg,
    CAST(sum(arr_delay_sum) AS double) / nullif(sum(arrived), 0) AS arr_delay_avg
FROM delays_by_arrival
GROUP BY year, month

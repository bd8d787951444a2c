-- name: rollups.delays_by_arrival
-- sources: [flights.flights]
-- slices: [append_date, append_hour]
-- comment: Sums of delays, in minutes, of each month of departure, by the hour in which records arrived.
--
-- Of new records only their own hour is read again; what adds these up reads no raw table.
-- Grain: one row an hour of arrival and month of departure.
SELECT
    append_date,
    append_hour,
    year,
    month,
    count(*) AS flights,
    count_if(dep_time IS NULL) AS cancelled,
    count_if(dep_delay > 15) AS delayed,
    count(dep_delay) AS departed,
    sum(dep_delay) AS dep_delay_sum,
    count(arr_delay) AS arrived,
    sum(arr_delay) AS arr_delay_sum
FROM flights
WHERE year IS NOT NULL AND month IS NOT NULL
GROUP BY append_date, append_hour, year, month

-- name: rollups.route_by_month
-- sources: [flights.flights]
-- slices: [origin]
-- comment: Flights and mean delays, in minutes, of each route and month of departure.
--
-- Grain: one row an origin, destination and month of departure.
SELECT
    origin,
    dest,
    year,
    month,
    count(*) AS flights,
    count_if(dep_time IS NULL) AS cancelled,
    avg(dep_delay) AS dep_delay_avg,
    avg(arr_delay) AS arr_delay_avg
FROM flights
WHERE dest IS NOT NULL AND year IS NOT NULL AND month IS NOT NULL
GROUP BY origin, dest, year, month

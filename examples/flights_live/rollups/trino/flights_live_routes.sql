-- name: rollups.flights_live_routes
-- sources: [typed.flights_live]
-- comment: Flights of each route and their mean delays, in minutes, of planes that came in late and of others.
--
-- Grain: one row an origin, destination, and whether the plane was late before.
SELECT
    origin,
    dest,
    coalesce(former_arr_delay > 15, false) AS was_late,
    count(*) AS flights,
    count_if(dep_delay IS NULL) AS cancelled,
    avg(dep_delay) AS dep_delay_avg,
    avg(arr_delay) AS arr_delay_avg
FROM flights_live
GROUP BY origin, dest, coalesce(former_arr_delay > 15, false)

-- name: rollups.flights_live_planes
-- sources: [typed.flights_live]
-- comment: Flights and mean delays, in minutes, of the planes of each manufacturer.
--
-- Grain: one row a manufacturer; one without a name has flights whose plane is not known.
SELECT
    manufacturer,
    count(*) AS flights,
    count(DISTINCT tailnum) AS planes,
    avg(plane_age) AS plane_age_avg,
    avg(dep_delay) AS dep_delay_avg
FROM flights_live
GROUP BY manufacturer

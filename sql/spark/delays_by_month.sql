-- Delays of the months from :first to :last, both the first day of a month.
-- The view has each row once, even while files of the raw table overlap.
-- Grain: one row a month of departure.
SELECT
    year,
    month,
    count(*) AS flights,
    count_if(dep_time IS NULL) AS cancelled,
    count_if(dep_delay > 15) AS delayed,
    avg(dep_delay) AS dep_delay_avg,
    avg(arr_delay) AS arr_delay_avg
FROM flights.flights_exact
WHERE make_date(year, month, 1) BETWEEN to_date(:first) AND to_date(:last)
GROUP BY year, month

-- name: rollups.flights_live_lines
-- sources: [flights_live.enriched]
-- slices: [origin]
-- comment: What was appended of each airport, by the kind of the line.
--
-- Of the raw table, so flights of transactions that were taken back are among them.
-- Grain: one row an origin.
SELECT
    origin,
    count(*) AS appended,
    count(departs_at) AS flights,
    count_if(departs_at IS NULL) AS acknowledgements
FROM enriched
GROUP BY origin

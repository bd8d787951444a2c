-- The schema of all rollups. Idempotent.
CREATE SCHEMA IF NOT EXISTS iceberg.rollups

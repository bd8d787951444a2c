-- The namespace of all rollups. Idempotent.
CREATE NAMESPACE IF NOT EXISTS iceberg.rollups

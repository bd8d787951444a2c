-- Columns of route_by_month with their types.
DESCRIBE iceberg.rollups.route_by_month

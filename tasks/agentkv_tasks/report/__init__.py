"""Result rows as statistics, tables and pages."""

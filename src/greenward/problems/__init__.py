"""Problems: their records, public formats, generated families, mutation, mining of source."""

"""What every layer uses: errors, options, results, futures and units."""

"""Results that stay lazy: of dask arrays, and of xarray's around them. The faces find it by the name of the library."""

//! The only place that builds HTTP clients for addresses that tenants choose.

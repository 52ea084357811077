"""Reading rows of one table into results: `base.TableReader`, one implementation a device."""

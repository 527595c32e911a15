"""Model families behind one seam (`base.Family`); found by `model_type` in `engine/load.py`."""

"""How the three kinds of models are decoded.

Block by block behind an exact cache (`block_causal`), on a canvas that is seen as a whole (`bidirectional`), or by
renoising (`canvas`).
"""

r"""What an operation does, in a dozen words: one table for all that looks into networks.

==============  ===================================================================================
moves           every entry of the output is one of the input, and each is taken once
selects         every entry of the output is one of the input, left out, taken once or several times
joins           several values side by side, or one put into another
affine          $x \mapsto Ax + b$ in everything that follows the input together
entrywise       $y_i = \varphi(x_i)$
product         a value times another one (affine where one of the two is a constant)
reduction       a number of many: sums, means, norms
extreme         the largest, the smallest, or their order
normalization   a value divided by what measures it
composite       a layer in one operation: attention, recurrent layers
random          draws numbers
constant        makes a value out of none
decision        asks for a number: what comes next may depend on it
==============  ===================================================================================
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Kind = Literal[
    "moves", "selects", "joins", "affine", "entrywise", "product", "reduction", "extreme",
    "normalization", "composite", "random", "constant", "decision",
]  # fmt: skip

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_NAMES: dict[Kind, str] = {
    "moves": """
        view view_as reshape reshape_as flatten unflatten ravel permute transpose t T mT H mH
        adjoint movedim squeeze unsqueeze contiguous clone detach to type type_as float double half
        bfloat16 identity alias roll flip fliplr flipud rot90 pixel_shuffle pixel_unshuffle
        channel_shuffle native_channel_shuffle resolve_conj resolve_neg requires_grad lift_fresh
        reversed cpu cuda atleast_1d atleast_2d atleast_3d int long bool short positive
        _assert_tensor_metadata copy_to
    """,
    "selects": """
        getitem select slice narrow chunk split split_with_sizes tensor_split unsafe_chunk
        unsafe_split hsplit vsplit dsplit unbind index_select index gather take take_along_dim
        diagonal unfold expand expand_as broadcast_to broadcast_tensors repeat tile
        repeat_interleave embedding masked_select real imag meshgrid as_strided
    """,
    "joins": """
        cat stack hstack vstack dstack column_stack block_diag where setitem scatter index_put
        index_copy index_fill masked_scatter masked_fill select_scatter slice_scatter
        diagonal_scatter as_strided_scatter put combine_views copy pad_sequence
    """,
    "affine": """
        linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
        conv_tbc add sub rsub neg lerp avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d interpolate upsample upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
        upsample_bicubic2d upsample_trilinear3d pad constant_pad_nd reflection_pad1d
        reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
        windows fold col2im im2col tril triu embedding_bag scatter_add index_add index_reduce
        scatter_reduce trace diff fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2
        fft_irfft2 fft_fftn fft_ifftn fft_fftshift fft_ifftshift diag diag_embed diagflat
        max_unpool1d max_unpool2d max_unpool3d grid_sample one_hot
    """,
    "entrywise": """
        relu relu6 leaky_relu prelu rrelu elu celu selu gelu silu mish tanh sigmoid logsigmoid
        softplus softsign tanhshrink hardtanh hardsigmoid hardswish softshrink hardshrink threshold
        abs clamp clamp_min clamp_max exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square pow
        rpow rdiv reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc erfinv
        lgamma digamma logit sign sgn floor ceil round trunc frac heaviside nan_to_num sinc
        eq ne lt le gt ge isnan isinf isfinite isclose bitwise_and bitwise_or bitwise_xor
        bitwise_not logical_and logical_or logical_xor logical_not remainder fmod floor_divide
        rfloor_divide atan2 hypot copysign logaddexp logaddexp2 xlogy special_i0 signbit angle
        view_as_real view_as_complex complex polar conj
    """,
    "product": """
        mul div matmul rmatmul einsum addmm addmv addbmm baddbmm addr addcmul addcdiv outer ger
        tensordot inner kron bilinear multi_dot chain_matmul cross cosine_similarity cdist
        pairwise_distance linalg_solve linalg_inv inverse true_divide vdot vecdot linalg_vecdot
        addmm_activation
    """,
    "reduction": """
        sum mean nansum nanmean prod cumsum cumprod logsumexp logcumsumexp var std var_mean
        std_mean norm vector_norm matrix_norm dist all any count_nonzero det logdet slogdet
        lp_pool1d lp_pool2d lp_pool3d cross_entropy nll_loss mse_loss l1_loss
        binary_cross_entropy_with_logits binary_cross_entropy kl_div
    """,
    "extreme": """
        max min amax amin aminmax maximum minimum max_pool1d max_pool2d max_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
        fractional_max_pool3d sort argsort topk median nanmedian quantile kthvalue mode cummax
        cummin argmax argmin msort searchsorted bucketize
    """,
    "normalization": """
        softmax softmin log_softmax gumbel_softmax sparse_softmax layer_norm group_norm batch_norm
        instance_norm rms_norm normalize local_response_norm native_layer_norm native_group_norm
        native_batch_norm renorm _weight_norm glu
    """,
    "composite": """
        multi_head_attention_forward scaled_dot_product_attention lstm gru rnn_tanh rnn_relu
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        _native_multi_head_attention _transformer_encoder_layer_fwd
    """,
    "random": """
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
        rand randn randint randperm rand_like randn_like randint_like normal uniform bernoulli
        multinomial poisson exponential random geometric cauchy log_normal native_dropout
    """,
    "constant": """
        zeros ones full empty eye arange linspace logspace range tensor as_tensor asarray
        from_numpy scalar_tensor zeros_like ones_like full_like empty_like new_zeros new_ones
        new_full new_empty new_tensor fill zero tril_indices triu_indices complex_zeros
        empty_strided hann_window hamming_window
    """,
    "decision": """
        item tolist __bool__ __int__ __float__ __index__ __contains__ numpy __array__ equal
        allclose is_nonzero nonzero argwhere unique unique_consecutive bincount histc
        __iter__ __complex__
    """,
}

#: Plain name -> kind, of all operations that are known.
KIND_OF: Final[dict[str, Kind]] = {
    name: kind for kind, names in _NAMES.items() for name in names.split()
}

#: Families whose members differ in their dimensions and modes only, for tables of rules.
AVERAGES: Final = tuple(name for name in KIND_OF if "avg_pool" in name)
MAXIMA: Final = tuple(f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
RESIZES: Final = tuple(name for name in KIND_OF if name.startswith(("interpolate", "upsample")))
PADS: Final = ("pad", *(name for name in KIND_OF if "_pad" in name))

#: What an operation says about a tensor that its numbers do not change.
DESCRIPTIONS: Final = frozenset(
    """
    size dim ndimension numel nelement __len__ stride is_contiguous is_floating_point is_complex
    is_signed is_inference is_conj is_neg is_pinned get_device element_size storage_offset data_ptr
    __hash__ __repr__ __format__ is_same_size untyped_storage storage storage_type is_shared
    has_names sym_size is_tensor is_storage dense_dim sparse_dim is_set_to is_coalesced
    result_type can_cast broadcast_shapes get_default_dtype set_grad_enabled
    __deepcopy__ __reduce_ex__ __dir__ is_distributed _is_view _version is_grad_enabled
    register_hook retain_grad backward has_torch_function nbytes itemsize promote_types
    __set__ finfo iinfo _assert_async sym_numel
    """.split()
)

module attributes {hivm.module_core_type = #hivm.module_core_type<MIX>} {
  func.func @product_mix_aic(%arg0: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}, %arg1: memref<?xi8, #hivm.address_space<gm>>, %arg2: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<workspace>}, %arg3: memref<?xbf16, #hivm.address_space<gm>>, %arg4: i32, %arg5: i32, %arg6: i32, %arg7: i32) attributes {hivm.func_core_type = #hivm.func_core_type<AIC>} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c16 = arith.constant 16 : index
    %c32 = arith.constant 32 : index
    %c128 = arith.constant 128 : index
    %true = arith.constant true
    %false = arith.constant false
    %c0_i8 = arith.constant 0 : i8
    %c0_i64 = arith.constant 0 : i64
    %c4096_i64 = arith.constant 4096 : i64
    %c-1_i64 = arith.constant -1 : i64
    %0 = hivm.hir.pointer_cast(%c0_i64) : memref<8x1x16x16xbf16, #hivm.address_space<cbuf>>
    %1 = hivm.hir.pointer_cast(%c4096_i64) : memref<8x2x16x16xbf16, #hivm.address_space<cbuf>>
    %2 = hivm.hir.pointer_cast(%c0_i64) : memref<2x1x16x16xf32, #hivm.address_space<cc>>
    %reinterpret_cast = memref.reinterpret_cast %arg3 to offset: [0], sizes: [32, 128], strides: [128, 1] : memref<?xbf16, #hivm.address_space<gm>> to memref<32x128xbf16, strided<[128, 1]>, #hivm.address_space<gm>>
    %view = memref.view %arg2[%c0][] : memref<?xi8, #hivm.address_space<gm>> to memref<16x32xf32, #hivm.address_space<gm>>
    scf.for %arg8 = %c0 to %c2 step %c1 {
      func.call @nd2nz_bfloat16_t(%reinterpret_cast, %1) : (memref<32x128xbf16, strided<[128, 1]>, #hivm.address_space<gm>>, memref<8x2x16x16xbf16, #hivm.address_space<cbuf>>) -> ()
      hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_MTE1>, <EVENT_ID0>]
      func.call @mma_tile_bfloat16_t_to_float_tb(%0, %1, %true, %c16, %c128, %c32, %2, %c-1_i64, %c0_i64, %c-1_i64, %c-1_i64, %c-1_i64, %c-1_i64, %c-1_i64, %c0_i8) : (memref<8x1x16x16xbf16, #hivm.address_space<cbuf>>, memref<8x2x16x16xbf16, #hivm.address_space<cbuf>>, i1, index, index, index, memref<2x1x16x16xf32, #hivm.address_space<cc>>, i64, i64, i64, i64, i64, i64, i64, i8) -> ()
      hivm.hir.set_flag[<PIPE_M>, <PIPE_FIX>, <EVENT_ID0>]
      hivm.hir.wait_flag[<PIPE_M>, <PIPE_FIX>, <EVENT_ID0>]
      func.call @fixpipe_nz2nd_float_to_float_4d_to_2d(%2, %view, %c0_i64, %c0_i64, %false, %c0_i8) : (memref<2x1x16x16xf32, #hivm.address_space<cc>>, memref<16x32xf32, #hivm.address_space<gm>>, i64, i64, i1, i8) -> ()
      hivm.hir.sync_block_set[<CUBE>, <PIPE_FIX>, <PIPE_S>] flag = 3 ffts_base_addr = %arg0
    }
    return
  }
  func.func @product_mix_aiv(%arg0: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}, %arg1: memref<?xi8, #hivm.address_space<gm>>, %arg2: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<workspace>}, %arg3: memref<?xbf16, #hivm.address_space<gm>>, %arg4: i32, %arg5: i32, %arg6: i32, %arg7: i32) attributes {hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c0 = arith.constant 0 : index
    %c0_i64 = arith.constant 0 : i64
    %c0_i32 = arith.constant 0 : i32
    %c1_i32 = arith.constant 1 : i32
    %c2_i32 = arith.constant 2 : i32
    %0 = hivm.hir.get_sub_block_idx -> i64
    %1 = hivm.hir.pointer_cast(%c0_i64) : memref<8x32xf32, #hivm.address_space<ub>>
    %view = memref.view %arg2[%c0][] : memref<?xi8, #hivm.address_space<gm>> to memref<16x32xf32, #hivm.address_space<gm>>
    %subview = memref.subview %view[%c0, 0] [8, 32] [1, 1] : memref<16x32xf32, #hivm.address_space<gm>> to memref<8x32xf32, strided<[32, 1], offset: ?>, #hivm.address_space<gm>>
    %2:2 = scf.while (%arg8 = %c0_i32, %arg9 = %c0_i32) : (i32, i32) -> (i32, i32) {
      %3 = arith.cmpi slt, %arg8, %c2_i32 : i32
      scf.condition(%3) %arg8, %arg9 : i32, i32
    } do {
    ^bb0(%arg8: i32, %arg9: i32):
      hivm.hir.sync_block_wait[<VECTOR>, <PIPE_FIX>, <PIPE_S>] flag = 3
      func.call @load_gm_to_ubuf_2d_float(%subview, %1, %c0_i32) : (memref<8x32xf32, strided<[32, 1], offset: ?>, #hivm.address_space<gm>>, memref<8x32xf32, #hivm.address_space<ub>>, i32) -> ()
      %3 = arith.addi %arg8, %c1_i32 : i32
      scf.yield %3, %arg9 : i32, i32
    }
    return
  }
}

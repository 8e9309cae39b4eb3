#map = affine_map<()[s0] -> (64, s0)>
#map1 = affine_map<(d0)[s0] -> (d0 * 64 + s0)>
module attributes {hivm.module_core_type = #hivm.module_core_type<AIV>} {
  func.func private @load_gm_to_ubuf_2d_float(memref<?x?xf32>, memref<?x?xf32>, i32) attributes {hacc.always_inline}
  func.func private @vexp_2d_float(memref<?x?xf32>, memref<?x?xf32>)
  func.func @exponentials(%arg0: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}, %arg1: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<sync_block_lock>}, %arg2: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<workspace>}, %arg3: memref<?xf32, #hivm.address_space<gm>>, %arg4: memref<?xi32, #hivm.address_space<gm>>, %arg5: i32, %arg6: i32, %arg7: i32, %arg8: i32) attributes {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIV>} {
    %c0 = arith.constant 0 : index
    %c0_i32 = arith.constant 0 : i32
    %c1_i32 = arith.constant 1 : i32
    %c4096_i64 = arith.constant 4096 : i64
    %0 = hivm.hir.get_block_idx -> i64
    %1 = arith.index_cast %0 : i64 to index
    %reinterpret_cast = memref.reinterpret_cast %arg4 to offset: [%1], sizes: [1], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<1xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %2 = memref.load %reinterpret_cast[%c0] {markDCacheInvalidatePatternVisited = 0 : i32} : memref<1xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %3 = hivm.hir.pointer_cast(%c4096_i64) : memref<4x96xf32, #hivm.address_space<ub>>
    scf.for %arg9 = %c0_i32 to %2 step %c1_i32  : i32 {
      %4 = arith.index_cast %arg9 : i32 to index
      %5 = affine.apply #map1(%4)[%c0]
      %reinterpret_cast_0 = memref.reinterpret_cast %arg3 to offset: [%5], sizes: [4, 96], strides: [128, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<4x96xf32, strided<[128, 1], offset: ?>, #hivm.address_space<gm>>
      func.call @load_gm_to_ubuf_2d_float(%reinterpret_cast_0, %3, %c0_i32) : (memref<4x96xf32, strided<[128, 1], offset: ?>, #hivm.address_space<gm>>, memref<4x96xf32, #hivm.address_space<ub>>, i32) -> ()
      hivm.hir.set_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
      func.call @vexp_2d_float(%3, %3) : (memref<4x96xf32, #hivm.address_space<ub>>, memref<4x96xf32, #hivm.address_space<ub>>) -> ()
      hivm.hir.pipe_barrier[<PIPE_V>]
      %6 = arith.cmpi eq, %arg9, %c0_i32 : i32
      scf.if %6 {
        func.call @enablevc_reduce_sum_ar_float(%3, %3) : (memref<4x96xf32, #hivm.address_space<ub>>, memref<4x96xf32, #hivm.address_space<ub>>) -> ()
      } else {
        func.call @vmuls_vs_1d_float(%3, %c0_i32, %3) : (memref<4x96xf32, #hivm.address_space<ub>>, i32, memref<4x96xf32, #hivm.address_space<ub>>) -> ()
      } {hivm.unlikely_condition}
      hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
      hivm.hir.wait_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
      func.call @store_ubuf_to_gm_2d_float(%3, %reinterpret_cast_0, %c0_i32) : (memref<4x96xf32, #hivm.address_space<ub>>, memref<4x96xf32, strided<[128, 1], offset: ?>, #hivm.address_space<gm>>, i32) -> ()
    }
    return
  }
}

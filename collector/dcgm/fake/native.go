//go:build cgo && linux

package fake

// #include <malloc.h>
// #include <stddef.h>
// extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));
// // All threads take from one arena, which is the one that mallinfo2 tells of.
// __attribute__((constructor)) static void one_arena(void) { mallopt(M_ARENA_MAX, 1); }
// static size_t allocated(void) {
// 	if (__sanitizer_get_current_allocated_bytes)
// 		return __sanitizer_get_current_allocated_bytes();
// 	struct mallinfo2 all = mallinfo2();
// 	return all.uordblks + all.hblkhd;
// }
import "C"

// Allocated returns how many bytes this process has from C's malloc and has not given
// back, the fake's own included.
func Allocated() int { return int(C.allocated()) }

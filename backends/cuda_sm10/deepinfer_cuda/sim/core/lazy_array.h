// A zeroed array whose pages cost nothing until they are touched.
//
// Why: registers and shadow cells of a full wave of CTAs are gigabytes, and most of them are never used.
#pragma once
#include <cstdlib>
#include <new>

namespace ptxsim {

template <class T>
class LazyArray {
   public:
    LazyArray() = default;
    LazyArray(const LazyArray&) = delete;
    LazyArray& operator=(const LazyArray&) = delete;
    ~LazyArray() { std::free(p_); }
    void resize(size_t n) {  // once, from empty
        p_ = static_cast<T*>(std::calloc(n ? n : 1, sizeof(T)));
        if (!p_) throw std::bad_alloc();
        n_ = n;
    }
    T& operator[](size_t i) { return p_[i]; }
    const T& operator[](size_t i) const { return p_[i]; }
    T* data() { return p_; }
    size_t size() const { return n_; }
    T* begin() { return p_; }
    T* end() { return p_ + n_; }

   private:
    T* p_ = nullptr;
    size_t n_ = 0;
};

}  // namespace ptxsim

// min/max with PTX rules for NaN and signed zero, shared by f32, f64 and the half formats.
#pragma once
#include <cmath>
#include <limits>

namespace ptxsim {

template <class T>
T float_min_max(T a, T b, bool max, bool nan, bool xorsign) {
    if (std::isnan(a) || std::isnan(b)) {
        if (nan || (std::isnan(a) && std::isnan(b))) return std::numeric_limits<T>::quiet_NaN();
        T number = std::isnan(a) ? b : a;  // .xorsign takes the sign of a NaN too
        return xorsign ? std::copysign(number, std::signbit(a) != std::signbit(b) ? T(-1) : T(1)) : number;
    }
    if (xorsign) {
        T r = max ? std::fmax(std::fabs(a), std::fabs(b)) : std::fmin(std::fabs(a), std::fabs(b));
        return std::signbit(a) != std::signbit(b) ? -r : r;
    }
    if (a == b) return max == std::signbit(a) ? b : a;  // -0 < +0
    return (a > b) == max ? a : b;
}

}  // namespace ptxsim

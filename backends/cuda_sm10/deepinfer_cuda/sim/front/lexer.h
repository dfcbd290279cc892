// Tokens of PTX text.
//
// Why a separate pass: opcodes may be glued to the next token ("tcgen05.st...b32{%r1,"), and modifiers may begin with digits
// (".32x32b") or contain "::". A token stream with explicit kinds keeps those rules out of the parser.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ptxsim {

enum class Tok : uint8_t { end, name, dotted, integer, real, string, punct };

struct Token {
    Tok kind = Tok::end;
    std::string text;   // name: identifier; dotted: modifier or directive without its dot; punct: one character
    uint64_t value = 0; // integer value or floating point bits
    int flt_bits = 0;
    int line = 0;
    bool glued = false; // no white space before this token
};

std::vector<Token> tokenize(const std::string& text);

}  // namespace ptxsim

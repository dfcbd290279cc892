#include "front/lexer.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "front/ast.h"

namespace ptxsim {
namespace {

bool name_start(char c) { return std::isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%'; }
bool name_char(char c) { return std::isalnum((unsigned char)c) || c == '_' || c == '$'; }

struct Lexer {
    const std::string& s;
    size_t i = 0;
    int line = 1;
    std::vector<Token> out;

    explicit Lexer(const std::string& text) : s(text) {}

    [[noreturn]] void fail(const std::string& why) const {
        throw SimError("PTX line " + std::to_string(line) + ": " + why);
    }

    bool skip_blank() {
        bool moved = false;
        while (i < s.size()) {
            if (s[i] == '\n') {
                ++line, ++i, moved = true;
            } else if (std::isspace((unsigned char)s[i])) {
                ++i, moved = true;
            } else if (s.compare(i, 2, "//") == 0) {
                while (i < s.size() && s[i] != '\n') ++i;
                moved = true;
            } else if (s.compare(i, 2, "/*") == 0) {
                size_t e = s.find("*/", i + 2);
                if (e == std::string::npos) fail("comment is not closed");
                for (; i < e + 2; ++i) line += s[i] == '\n';
                moved = true;
            } else {
                break;
            }
        }
        return moved;
    }

    Token& push(Tok k, std::string text, bool glued) {
        Token t;
        t.kind = k, t.text = std::move(text), t.line = line, t.glued = glued;
        out.push_back(std::move(t));
        return out.back();
    }

    void hex_float(bool glued) {  // 0f3F800000, 0d3FF0000000000000
        int digits = (s[i + 1] | 32) == 'f' ? 8 : 16;
        std::string h = s.substr(i + 2, digits);
        Token& t = push(Tok::real, s.substr(i, 2 + digits), glued);
        t.value = std::strtoull(h.c_str(), nullptr, 16);
        t.flt_bits = digits * 4;
        i += 2 + digits;
    }

    void number(bool glued) {
        char k = i + 1 < s.size() ? char(s[i + 1] | 32) : 0;
        if (s[i] == '0' && (k == 'f' || k == 'd')) return hex_float(glued);
        size_t b = i;
        int base = 10;
        if (s[i] == '0' && k == 'x') {
            base = 16, i += 2;
            while (i < s.size() && std::isxdigit((unsigned char)s[i])) ++i;
        } else if (s[i] == '0' && k == 'b') {
            base = 2, i += 2;
            while (i < s.size() && (s[i] == '0' || s[i] == '1')) ++i;
        } else {
            while (i < s.size() && std::isdigit((unsigned char)s[i])) ++i;
            bool real = i + 1 < s.size() && s[i] == '.' && std::isdigit((unsigned char)s[i + 1]);
            if (real) {
                char* e = nullptr;
                double d = std::strtod(s.c_str() + b, &e);
                i = size_t(e - s.c_str());
                Token& t = push(Tok::real, s.substr(b, i - b), glued);
                std::memcpy(&t.value, &d, 8);
                t.flt_bits = 64;
                return;
            }
            if (s[b] == '0' && i - b > 1) base = 8;
        }
        std::string digits = s.substr(b + (base == 16 || base == 2 ? 2 : 0), i - b);
        if (i < s.size() && s[i] == 'U') ++i;
        Token& t = push(Tok::integer, s.substr(b, i - b), glued);
        t.value = std::strtoull(digits.c_str(), nullptr, base);
    }

    void dotted(bool glued) {
        size_t b = ++i;
        while (i < s.size() && (name_char(s[i]) || (s.compare(i, 2, "::") == 0 && i + 2 < s.size() && name_char(s[i + 2]))))
            i += s[i] == ':' ? 2 : 1;
        push(Tok::dotted, s.substr(b, i - b), glued);
    }

    void quoted(bool glued) {
        size_t e = i + 1;
        while (e < s.size() && s[e] != '"') e += s[e] == '\\' ? 2 : 1;
        if (e >= s.size()) fail("string is not closed");
        push(Tok::string, s.substr(i + 1, e - i - 1), glued);
        i = e + 1;
    }

    void run() {
        while (true) {
            bool glued = !skip_blank();
            if (i >= s.size()) break;
            char c = s[i];
            if (name_start(c)) {
                size_t b = i++;
                while (i < s.size() && name_char(s[i])) ++i;
                push(Tok::name, s.substr(b, i - b), glued);
            } else if (std::isdigit((unsigned char)c)) {
                number(glued);
            } else if (c == '.' && i + 1 < s.size() && name_char(s[i + 1])) {
                dotted(glued);
            } else if (c == '"') {
                quoted(glued);
            } else if (std::strchr("{}[]()<>,;:+-*/|!@=&~^?", c)) {
                push(Tok::punct, std::string(1, c), glued), ++i;
            } else if (c == 0 && i + 1 >= s.size()) {
                break;  // images handed over as C strings end in NUL
            } else {
                fail("unexpected character with code " + std::to_string((unsigned char)c));
            }
        }
        push(Tok::end, "", false);
    }
};

}  // namespace

std::vector<Token> tokenize(const std::string& text) {
    Lexer l(text);
    l.run();
    return std::move(l.out);
}

}  // namespace ptxsim

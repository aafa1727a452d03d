// Shows on stock llama.cpp that a rejected draft can give a sequence the recurrent state of another one.
//
// Several sequences share one context, as the slots of llama-server do. In every round a random part of
// them takes a step: either a piece of prompt, or one kept token and some drafts of which a random number
// is rejected with llama_memory_seq_rm. Afterwards every sequence is decoded alone, from its kept tokens
// only, and the logits are compared. What a sequence answers must not depend on its neighbours.
//
//   g++ -std=c++17 -O2 reproduce.cpp -I llama.cpp/include -I llama.cpp/ggml/include
//       -L build/bin -Wl,-rpath,$PWD/build/bin -lllama -lggml -lggml-base -o reproduce
//   ./reproduce MODEL.gguf [sequences=3] [seed=1] [rounds=30] [drafts=3] [ubatch=64]
//
// MODEL is any model whose recurrent state can be rolled back (qwen35, qwen3next, qwen4exp, ...).
// Prints the worst normalised squared error and returns 1 if it is above 1e-3.

#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct settings {
    int sequences = 3;
    int seed      = 1;
    int rounds    = 30;
    int drafts    = 3;
    int ubatch    = 64;
};

constexpr int    positions_per_sequence = 1024;
constexpr double tolerance              = 1e-3;  // rounding stays below 1e-5, the fault is near 1

using context_ptr = std::unique_ptr<llama_context, decltype(&llama_free)>;
using model_ptr   = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using logits      = std::vector<float>;

// What one sequence was fed and kept, and what the shared context answered at each kept position.
struct sequence {
    std::vector<llama_token> kept;
    std::vector<logits>      answers;
};

// One sequence's part of a batch: the first `keep` of `tokens` stay, the rest are rejected drafts.
struct step {
    int                      owner;
    std::vector<llama_token> tokens;
    size_t                   keep;
};

class batch {
public:
    explicit batch(int capacity) : raw(llama_batch_init(capacity, 0, 1)) {}
    ~batch() { llama_batch_free(raw); }
    batch(const batch &) = delete;
    batch & operator=(const batch &) = delete;

    void add(llama_token token, int position, int owner) {
        const int i        = raw.n_tokens++;
        raw.token[i]       = token;
        raw.pos[i]         = position;
        raw.n_seq_id[i]    = 1;
        raw.seq_id[i][0]   = owner;
        raw.logits[i]      = 1;
    }

    void decode(llama_context * context) const {
        if (llama_decode(context, raw) != 0) {
            throw std::runtime_error("llama_decode failed");
        }
    }

private:
    llama_batch raw;
};

context_ptr make_context(llama_model * model, const settings & s, int sequences, int snapshots) {
    auto params       = llama_context_default_params();
    params.n_ctx      = positions_per_sequence * sequences;
    params.n_batch    = positions_per_sequence;
    params.n_ubatch   = s.ubatch;
    params.n_seq_max  = sequences;
    params.n_rs_seq   = snapshots;
    params.kv_unified = true;
    params.n_threads  = params.n_threads_batch = 1;
    context_ptr context(llama_init_from_model(model, params), llama_free);
    if (!context) {
        throw std::runtime_error("no context");
    }
    return context;
}

logits read_logits(llama_context * context, int index, int n_vocab) {
    const float * row = llama_get_logits_ith(context, index);
    return { row, row + n_vocab };
}

double relative_error(const logits & got, const logits & want) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double d = double(got[i]) - want[i];
        difference += d * d;
        size       += double(want[i]) * want[i];
    }
    return difference / size;
}

class simulation {
public:
    simulation(llama_model * model, const settings & s)
        : s(s), model(model), n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(model))),
          random(s.seed), sequences(s.sequences) {}

    void run_shared() {
        auto context = make_context(model, s, s.sequences, s.drafts);
        for (int owner = 0; owner < s.sequences; ++owner) {  // every sequence begins with a prompt
            take(context.get(), { prompt(owner, 20, 50) });
        }
        for (int round = 0; round < s.rounds; ++round) {
            std::vector<step> steps;
            for (int owner = 0; owner < s.sequences; ++owner) {
                if (sequences[owner].kept.size() + 100 > positions_per_sequence) {
                    continue;
                }
                switch (below(8)) {
                    case 0:  break;  // idle in this round
                    case 1:  steps.push_back(prompt(owner, 20, 80)); break;
                    default: steps.push_back(draft(owner)); break;
                }
            }
            take(context.get(), steps);
        }
    }

    // The worst error over all kept positions, against each sequence decoded alone.
    double compare_with_alone(std::string & where) {
        double worst = 0;
        for (int owner = 0; owner < s.sequences; ++owner) {
            auto         context = make_context(model, s, 1, 0);
            const auto & one     = sequences[owner];
            batch        all((int) one.kept.size());
            for (size_t i = 0; i < one.kept.size(); ++i) {
                all.add(one.kept[i], (int) i, 0);
            }
            all.decode(context.get());
            for (size_t i = 0; i < one.kept.size(); ++i) {
                const double error = relative_error(one.answers[i], read_logits(context.get(), (int) i, n_vocab));
                if (error > worst) {
                    worst = error;
                    where = "sequence " + std::to_string(owner) + ", position " + std::to_string(i);
                }
            }
        }
        return worst;
    }

private:
    int below(int n) { return (int) (random() % n); }

    std::vector<llama_token> tokens(int count) {
        std::vector<llama_token> made(count);
        for (auto & token : made) {
            token = below(n_vocab);
        }
        return made;
    }

    step prompt(int owner, int shortest, int longest) {
        const int count = shortest + below(longest - shortest + 1);
        return { owner, tokens(count), (size_t) count };
    }

    step draft(int owner) {
        const int drafted = below(s.drafts + 1);
        return { owner, tokens(1 + drafted), (size_t) 1 + below(drafted + 1) };
    }

    // Decode all steps in one batch, note the answers at the kept tokens, take the rejected drafts back.
    void take(llama_context * context, const std::vector<step> & steps) {
        int total = 0;
        for (const auto & one : steps) {
            total += (int) one.tokens.size();
        }
        if (total == 0) {
            return;
        }
        batch together(total);
        for (const auto & one : steps) {
            const int start = (int) sequences[one.owner].kept.size();
            for (size_t i = 0; i < one.tokens.size(); ++i) {
                together.add(one.tokens[i], start + (int) i, one.owner);
            }
        }
        together.decode(context);
        int index = 0;
        for (const auto & one : steps) {
            auto & owner = sequences[one.owner];
            for (size_t i = 0; i < one.keep; ++i) {
                owner.kept.push_back(one.tokens[i]);
                owner.answers.push_back(read_logits(context, index + (int) i, n_vocab));
            }
            index += (int) one.tokens.size();
            if (one.keep < one.tokens.size() &&
                !llama_memory_seq_rm(llama_get_memory(context), one.owner, (int) owner.kept.size(), -1)) {
                throw std::runtime_error("the memory refused to take rejected drafts back");
            }
        }
    }

    settings              s;
    llama_model *         model;
    int                   n_vocab;
    std::mt19937          random;
    std::vector<sequence> sequences;
};

void only_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s MODEL.gguf [sequences] [seed] [rounds] [drafts] [ubatch]\n", argv[0]);
        return 2;
    }
    settings s;
    int * const values[] = { &s.sequences, &s.seed, &s.rounds, &s.drafts, &s.ubatch };
    for (int i = 2; i < argc && i < 7; ++i) {
        *values[i - 2] = std::atoi(argv[i]);
    }
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    auto params         = llama_model_default_params();
    params.n_gpu_layers = 0;
    model_ptr model(llama_model_load_from_file(argv[1], params), llama_model_free);
    if (!model) {
        return 2;
    }
    try {
        simulation  run(model.get(), s);
        std::string where = "nowhere";
        run.run_shared();
        const double worst = run.compare_with_alone(where);
        std::printf("sequences %d seed %d: worst nmse %.3g (%s)\n", s.sequences, s.seed, worst, where.c_str());
        return worst > tolerance ? 1 : 0;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    }
}

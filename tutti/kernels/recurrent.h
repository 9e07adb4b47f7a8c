#pragma once

#include <cstdint>

namespace tutti::kernels {

// One step of a layer of LSTM cells (Hochreiter and Schmidhuber 1997, with gates of Gers and others 2000). A
// row is a sequence. Its four gates of `width` elements lie one after the other: i for the input, f for the
// cells before, g for the new values of cells, and o for the output. With a = from_hidden + from_input:
//   i = sigmoid(a), f = sigmoid(a), g = tanh(a), o = sigmoid(a)
//   cells = f * cells_before + i * g, hidden = o * tanh(cells)
template <class T>
struct LstmStep {
  const T* from_input;   // 4 * width elements of a row
  const T* from_hidden;  // the same
  const T* cells_before;
  T* gates;
  T* cells;
  T* tanh_cells;
  T* hidden;
  int64_t width;
};

// Computes rows `first` to `last`.
void step_lstm(const LstmStep<float>& step, int64_t first, int64_t last);
void step_lstm(const LstmStep<double>& step, int64_t first, int64_t last);

// The gradients of a step. With h the gradient of `hidden` and y = 1 - t t, where t = tanh(cells):
//   c = cell_gradient + h o y
//   the gradients of a: (c g) (1 - i) i, (c cells_before) (1 - f) f, (c i) (1 - g g), (h t) (1 - o) o
//   cell_gradient = c f, which is the gradient of the cells before
template <class T>
struct LstmStepBackward {
  const T* hidden_gradient;
  const T* cells_before;
  const T* gates;
  const T* tanh_cells;
  T* cell_gradient;   // the gradient of `cells` at the beginning
  T* gates_gradient;  // of a
  int64_t width;
};

void differentiate_lstm(const LstmStepBackward<float>& step, int64_t first, int64_t last);
void differentiate_lstm(const LstmStepBackward<double>& step, int64_t first, int64_t last);

}  // namespace tutti::kernels

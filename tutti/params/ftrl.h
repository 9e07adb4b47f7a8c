#pragma once

namespace tutti {

// FTRL-Proximal (H. B. McMahan and others, "Ad Click Prediction: a View from the Trenches", 2013, algorithm
// 1), with the options and the formulas of TensorFlow's FTRL. It keeps two numbers for each weight w,
// "accumulator" n and "linear" z, and makes with a gradient g:
//   n' = n + g^2
//   z += g + 2 l2_shrinkage w - (n'^-p - n^-p) / rate * w    with p = rate_power
//   w  = 0 if |z| <= l1, else (sign(z) l1 - z) / ((beta + n'^-p) / rate + 2 l2)
// and keeps w where the denominator is 0. So l1 makes weights exactly 0. The sum z begins with 0, as if the
// weights did: the first step shrinks other initial weights, nearly to 0 if g^2 is small against the initial
// n. So this is for linear models and for the weights of features, and not for hidden layers. A step with a
// rate of 0 changes nothing.
struct FtrlOptions {
  double rate = 0.001;                     // the learning rate, alpha in the paper
  double rate_power = -0.5;                // at most 0; 0: the learning rate does not fall
  double initial_accumulator_value = 0.1;  // of n
  double l1 = 0;                           // lambda_1 in the paper
  double l2 = 0;                           // half of the paper's lambda_2
  // An L2 penalty on the loss, besides. The weight decay of a group takes the place of 2 * l2_shrinkage.
  double l2_shrinkage = 0;
  double beta = 0;  // added to the root of n in the denominator, as in the paper
};

struct ElementwiseUpdate;
// Updates a chunk of the parameters, whose slots are n and z and whose weight decay is 2 * l2_shrinkage.
void make_ftrl_step(const FtrlOptions& options, const ElementwiseUpdate& update);

}  // namespace tutti

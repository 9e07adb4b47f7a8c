#pragma once

namespace tutti::kernels {

// Constants of the functions of one element. The polynomials, the constant first, are minimax approximations
// of the functions that their comments name (Remez' algorithm with 60 digits); the number at the end of the
// comment is the error relative to the function that is computed from the polynomial.

template <class T>
struct Coefficients;

template <>
struct Coefficients<float> {
  // log(2) in two parts, and 1 / log(2)
  static constexpr float kLog2 = 0.6931472F;
  static constexpr float kLog2Rest = -1.9046542e-09F;
  static constexpr float kLog2e = 1.442695F;

  // (exp(x) - 1 - x) / x^2 for |x| <= log(2) / 2; 2^-28
  static constexpr float kExp[] = {0.5F, 0.16666518F, 0.041666202F, 0.008368955F, 0.0013950639F};
  // The function that kExp approximates, with the smaller error that expm1 needs; 2^-34
  static constexpr float kExpm1[] = {0.5F,         0.16666667F,  0.04166627F,
                                     0.008333263F, 0.001394616F, 0.00019919191F};
  // (log(1 + x) - x + x^2 / 2) / x^3 for 1 + x from sqrt(1/2) to sqrt(2); 2^-30
  static constexpr float kLog[] = {0.33333313F,   -0.2500001F,  0.20002119F,  -0.16667992F, 0.14219546F,
                                   -0.124056585F, 0.118882865F, -0.11675295F, 0.06745928F};
  // -log(1 - erf(x)) / x - 1 for x from 0 to 3.95; 2^-27
  static constexpr float kErf[] = {0.12837917F,   0.6366194F,     0.10277783F,
                                   -0.01915309F,  -0.0001603163F, 0.0016669161F,
                                   -0.000632761F, 0.00011761653F, -9.253179e-06F};
  // erf(x) / x - 1 in x^2, for |x| <= 1 / 2, relative to erfc(x); 2^-30
  static constexpr float kErfNear[] = {0.12837915F, -0.3761256F, 0.11282157F, -0.026722223F, 0.00465649F};
  // (1 + 2 x) exp(x^2) erfc(x) in (x - 4) / (x + 4), for x from 0 to 10.2; 2^-30
  static constexpr float kErfc[] = {1.2329952F,    -0.13962114F,  0.015379623F,   0.068097845F,
                                    -0.10103762F,  0.09372136F,   -0.06635619F,   0.037219636F,
                                    -0.016021624F, 0.0050524585F, -0.0011288413F, -0.0006397097F};
  // (sin(x) / x - 1) / x^2 in x^2, for |x| <= pi / 4; 2^-37
  static constexpr float kSin[] = {-0.16666667F, 0.008333329F, -0.00019839233F, 2.7173714e-06F};
  // (cos(x) - 1 + x^2 / 2) / x^4 in x^2, for |x| <= pi / 4; 2^-33
  static constexpr float kCos[] = {0.041666646F, -0.0013887251F, 2.4425717e-05F};
  // (asin(x) / x - 1) / x^2 in x^2, for |x| <= 1 / 2; 2^-32
  static constexpr float kAsin[] = {0.1666666F,   0.07500504F,  0.044517048F,
                                    0.031807054F, 0.014440673F, 0.03751411F};
  // (atan(x) / x - 1) / x^2 in x^2, for |x| <= sqrt(2) - 1; 2^-30
  static constexpr float kAtan[] = {-0.33333316F, 0.19998473F, -0.14243546F, 0.105938695F, -0.060782976F};

  // Numbers in parts, the largest first.
  static constexpr float kPiHalf[] = {1.5707964F, -4.371139e-08F, -1.7151245e-15F};
  static constexpr float kOneOverLog2[] = {1.442695F, 1.925963e-08F};
  static constexpr float kOneOverLog10[] = {0.4342945F, -1.010305e-08F};
  static constexpr float kLog10OfTwo[] = {0.30103F, -1.4320989e-08F};
};

template <>
struct Coefficients<double> {
  static constexpr double kLog2 = 0.6931471805599453;
  static constexpr double kLog2Rest = 2.3190468138462996e-17;
  static constexpr double kLog2e = 1.4426950408889634;

  // As for floats; 2^-58
  static constexpr double kExp[] = {0.5000000000000013,     0.166666666666667,      0.04166666666651429,
                                    0.008333333333306967,   0.0013888888947338257,  0.0001984126991782753,
                                    2.4801489583466465e-05, 2.7557215938825317e-06, 2.76314162405714e-07,
                                    2.511796941250889e-08};
  // The function that kExp approximates, for results that are rounded to floats; 2^-28
  static constexpr double kExpOfFloat[] = {0.49999993451845587, 0.16666520686842742, 0.04166838730783959,
                                           0.008368710101364134, 0.0013814617029330658};
  // As for floats; 2^-63
  static constexpr double kExpm1[] = {0.5,
                                      0.16666666666666685,
                                      0.04166666666666673,
                                      0.008333333333316628,
                                      0.001388888888885821,
                                      0.00019841269897344311,
                                      2.480158737396164e-05,
                                      2.7557233942334174e-06,
                                      2.7557233273966735e-07,
                                      2.5112345258172e-08,
                                      2.0926953159613182e-09};
  // As for floats; 2^-59
  static constexpr double kLog[] = {
      0.33333333333333454, -0.2499999999999892,  0.19999999999946125, -0.16666666666914456,
      0.14285714293842267, -0.1249999998202191,  0.11111110516008471, -0.10000000382830496,
      0.09090933506287543, -0.08333345778710814, 0.07691714484703592, -0.07141999684053713,
      0.06675147656429524, -0.06269805408771209, 0.05817789889857253, -0.05326756560867838,
      0.05415898761699951, -0.06275061477308477, 0.05697068217371924, -0.024277780116366506};
  // The function that kLog approximates, for results that are rounded to floats; 2^-35
  static constexpr double kLogOfFloat[] = {0.3333333389244396,   -0.24999997076487251, 0.19999911247626512,
                                           -0.16666855067273098, 0.14290174667065283,  -0.12498287328012403,
                                           0.11014788504218398,  -0.09924536325726513, 0.0998848902688072,
                                           -0.09863084004675114, 0.05386770388181978};
  // erf(x) / x - 1 in x^2, for |x| <= 1; 2^-62
  static constexpr double kErf[] = {0.1283791670955126,     -0.3761263890318375,     0.11283791670954858,
                                    -0.02686617064507296,   0.00522397762478137,     -0.0008548326978765149,
                                    0.00012055331037551108, -1.4925593518728226e-05, 1.6460972954153765e-06,
                                    -1.635002619207727e-07, 1.4657883530919653e-08,  -1.136567067182716e-09,
                                    5.945255584223488e-11};
  // (1 + 2 x) exp(x^2) erfc(x) in (x - 4) / (x + 4), for x from 0 to 29; 2^-59. The form is that of Shepherd
  // and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", 1981.
  static constexpr double kErfc[] = {
      1.2329951186255526,     -0.13962111684056253,    0.015379652102619573,    0.06809705425469513,
      -0.10103906603629488,   0.09373283499826505,     -0.0663303658124225,     0.037167515538799226,
      -0.0161977340555396,    0.0050319699668381025,   -0.0007577733030851661,  -0.00019925663816187225,
      0.00015062173505804024, -2.4399392044918405e-05, -1.1222195399332853e-05, 5.710074132508909e-06,
      2.941351947334684e-07,  -8.257902944601029e-07,  7.420788644462694e-08,   1.1020501874891903e-07,
      -1.759488771204818e-08, -1.4049491652010869e-08, 1.7328789487495215e-09,  1.2143677223065443e-09};
  // A first guess of the inverse of erf. With w = -log(1 - x^2): erfinv(x) / x in w, for w <= 5, and
  // erfinv(x) in sqrt(w) - 4.2, for w from 5 to 38; 2^-20
  static constexpr double kErfinvNear[] = {
      0.8862266892513746,     0.23202135514258912,   0.0115093071246499,     -0.0022567966410393047,
      -0.0002027573657403005, 8.511648797859387e-05, -8.708909375572386e-06, 3.156055199175891e-07};
  static constexpr double kErfinvFar[] = {
      4.04172636774271,     1.0098941599170426,     0.0008039005180918138, -0.0006269893644336688,
      0.000224409246270926, -7.631291320558187e-05, 1.631312409320385e-05, -6.935878954600636e-07};
  // The inverse of erf in the same forms, for results that are rounded to floats; 2^-31, and 2^-28 for w up
  // to 17
  static constexpr double kErfinvNearOfFloat[] = {
      0.8862269258195056,      0.23201364443480357,   0.011549558642117945,    -0.0023359175284826967,
      -0.00012649201589470772, 4.492743878135496e-05, 3.11804177941786e-06,    -1.4364693387484263e-06,
      4.486830939966497e-08,   2.372113008526622e-08, -3.2165759063160964e-09, 1.3285837412859608e-10};
  static constexpr double kErfinvFarOfFloat[] = {
      4.0417262773582365,      1.0099009684478817,     0.0007879044603792686,
      -0.0007292914148741791,  3.0779037970106366e-05, -0.0003203140800867846,
      -0.00018481757763643783, -8.860139140120177e-05, -1.4977625346446854e-05};
  // (sin(x) / x - 1) / x^2 in x^2, for |x| <= pi / 4; 2^-57
  static constexpr double kSin[] = {-0.16666666666666632, 0.008333333333322441,    -0.00019841269829826657,
                                    2.75573136974432e-06, -2.5050758836262188e-08, 1.589683011403219e-10};
  // (cos(x) - 1 + x^2 / 2) / x^4 in x^2, for |x| <= pi / 4; 2^-64
  static constexpr double kCos[] = {0.0416666666666666,      -0.0013888888888874133, 2.4801587289488883e-05,
                                    -2.7557314354395963e-07, 2.0875723566181298e-09, -1.1359663421727813e-11};
  // (asin(x) / x - 1) / x^2 in x^2, for |x| <= 1 / 2; 2^-59
  static constexpr double kAsin[] = {0.16666666666666763,  0.07499999999970276,  0.04464285717510849,
                                     0.03038194268420667,  0.022372215643890612, 0.017351600376738448,
                                     0.01398095822338375,  0.01139780045713098,  0.010786404277128158,
                                     0.003683463397197711, 0.02176259841954487,  -0.021076194014227678,
                                     0.032676311512961034};
  // (atan(x) / x - 1) / x^2 in x^2, for |x| <= sqrt(2) - 1; 2^-59
  static constexpr double kAtan[] = {-0.333333333333332,   0.19999999999954104,  -0.14285714280249803,
                                     0.11111110786159736,  -0.09090897835914445, 0.07692061608465445,
                                     -0.06663119859423661, 0.05848003786901445,  -0.050398170454965564,
                                     0.038077474796605205, -0.017921230980504972};
  // (log((1 + s) / (1 - s)) - 2 s - 2/3 s^3) / s^5 in s^2, for |s| <= 0.172; 2^-66
  static constexpr double kLogWide[] = {0.4000000000000227, 0.28571428570091406, 0.22222222521439275,
                                        0.181817842303301,  0.15386763800623016, 0.13256663448917508,
                                        0.13197793180827744};

  // Numbers in parts, the largest first.
  static constexpr double kPiHalf[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33,
                                       5.562271104311117e-50};
  static constexpr double kTwoThirds[] = {0.6666666666666666, 3.700743415417188e-17};
  static constexpr double kOneOverLog2[] = {1.4426950408889634, 2.0355273740931033e-17};
  static constexpr double kOneOverLog10[] = {0.4342944819032518, 1.098319650216765e-17};
};

// The first 1,280 bits of 2 / pi behind the point.
inline constexpr unsigned long long kTwoOverPi[] = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0,
    0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4,
    0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

}  // namespace tutti::kernels

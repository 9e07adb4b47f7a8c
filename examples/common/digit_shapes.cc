#include "examples/common/digit_shapes.h"

#include <array>

namespace example {
namespace {

using enum Knot::Kind;

constexpr Knot kZeroRound[] = {{.50F, .05F}, {.27F, .17F}, {.17F, .50F}, {.27F, .83F}, {.50F, .95F},
                               {.73F, .83F}, {.83F, .50F}, {.73F, .17F}, {.50F, .05F}};
constexpr Knot kZeroNarrow[] = {{.55F, .05F}, {.36F, .20F}, {.30F, .55F}, {.40F, .88F}, {.52F, .95F},
                                {.66F, .80F}, {.70F, .45F}, {.62F, .12F}, {.46F, .09F}};
constexpr Knot kZeroOpen[] = {{.62F, .10F}, {.40F, .08F}, {.20F, .35F}, {.20F, .68F}, {.42F, .94F},
                              {.70F, .85F}, {.83F, .55F}, {.76F, .24F}, {.52F, .04F}};
constexpr DigitShape kZero[] = {kZeroRound, kZeroNarrow, kZeroOpen};

constexpr Knot kOnePlain[] = {{.50F, .05F}, {.50F, .50F}, {.50F, .95F}};
constexpr Knot kOneFlag[] = {{.34F, .26F}, {.53F, .05F, Corner}, {.53F, .95F}};
constexpr Knot kOneFoot[] = {
    {.34F, .24F}, {.52F, .05F, Corner}, {.52F, .95F, Lift}, {.30F, .95F}, {.74F, .95F}};
constexpr DigitShape kOne[] = {kOnePlain, kOneFlag, kOneFoot};

constexpr Knot kTwoSharp[] = {{.22F, .27F}, {.34F, .09F}, {.58F, .05F},         {.76F, .24F},
                              {.66F, .50F}, {.42F, .74F}, {.20F, .94F, Corner}, {.82F, .94F}};
constexpr Knot kTwoLoop[] = {{.24F, .22F}, {.46F, .05F}, {.72F, .20F}, {.64F, .50F}, {.36F, .82F},
                             {.22F, .93F}, {.18F, .80F}, {.36F, .76F}, {.60F, .92F}, {.82F, .88F}};
constexpr Knot kTwoSwan[] = {{.28F, .30F}, {.40F, .08F},         {.66F, .12F}, {.70F, .36F}, {.50F, .66F},
                             {.22F, .92F}, {.24F, .93F, Corner}, {.50F, .86F}, {.80F, .97F}};
constexpr DigitShape kTwo[] = {kTwoSharp, kTwoLoop, kTwoSwan};

constexpr Knot kThreeRound[] = {{.22F, .16F}, {.48F, .05F}, {.72F, .20F}, {.64F, .40F}, {.42F, .48F, Corner},
                                {.70F, .56F}, {.78F, .76F}, {.54F, .95F}, {.20F, .85F}};
constexpr Knot kThreeFlat[] = {{.22F, .06F}, {.74F, .06F, Corner}, {.46F, .40F, Corner}, {.72F, .54F},
                               {.78F, .75F}, {.52F, .95F},         {.20F, .86F}};
constexpr Knot kThreeLoop[] = {{.26F, .12F}, {.55F, .06F}, {.68F, .24F}, {.52F, .44F}, {.40F, .47F},
                               {.46F, .52F}, {.70F, .62F}, {.70F, .86F}, {.44F, .95F}, {.24F, .80F}};
constexpr DigitShape kThree[] = {kThreeRound, kThreeFlat, kThreeLoop};

constexpr Knot kFourOpen[] = {
    {.26F, .08F}, {.19F, .55F, Corner}, {.82F, .55F, Lift}, {.68F, .10F}, {.63F, .95F}};
constexpr Knot kFourClosed[] = {{.62F, .95F}, {.62F, .05F, Corner}, {.17F, .65F, Corner}, {.84F, .65F}};
constexpr Knot kFourCursive[] = {{.28F, .10F}, {.20F, .42F}, {.36F, .55F}, {.70F, .46F, Lift},
                                 {.74F, .08F}, {.66F, .50F}, {.58F, .95F}};
constexpr DigitShape kFour[] = {kFourOpen, kFourClosed, kFourCursive};

constexpr Knot kFiveOneStroke[] = {{.76F, .06F}, {.32F, .06F, Corner}, {.27F, .43F, Corner}, {.55F, .37F},
                                   {.78F, .62F}, {.60F, .91F},         {.22F, .89F}};
constexpr Knot kFiveHat[] = {{.32F, .08F}, {.28F, .44F, Corner}, {.58F, .40F}, {.76F, .68F},
                             {.52F, .95F}, {.22F, .84F, Lift},   {.32F, .08F}, {.80F, .05F}};
constexpr Knot kFiveCursive[] = {{.74F, .05F}, {.42F, .10F}, {.32F, .38F}, {.50F, .48F},
                                 {.70F, .62F}, {.62F, .88F}, {.36F, .95F}, {.20F, .82F}};
constexpr DigitShape kFive[] = {kFiveOneStroke, kFiveHat, kFiveCursive};

constexpr Knot kSixCurved[] = {{.68F, .06F}, {.38F, .27F}, {.24F, .62F}, {.38F, .93F},
                               {.66F, .89F}, {.74F, .67F}, {.54F, .53F}, {.28F, .67F}};
constexpr Knot kSixStraight[] = {{.56F, .04F}, {.36F, .40F}, {.26F, .72F}, {.44F, .95F},
                                 {.70F, .84F}, {.66F, .62F}, {.46F, .60F}, {.28F, .78F}};
constexpr Knot kSixLow[] = {{.46F, .04F}, {.26F, .36F}, {.20F, .70F}, {.40F, .95F},
                            {.74F, .90F}, {.80F, .70F}, {.56F, .60F}, {.24F, .80F}};
constexpr DigitShape kSix[] = {kSixCurved, kSixStraight, kSixLow};

constexpr Knot kSevenPlain[] = {{.20F, .08F}, {.80F, .08F, Corner}, {.56F, .48F}, {.42F, .95F}};
constexpr Knot kSevenBar[] = {
    {.20F, .09F}, {.80F, .07F, Corner}, {.42F, .95F, Lift}, {.36F, .52F}, {.76F, .48F}};
constexpr Knot kSevenHook[] = {
    {.20F, .24F}, {.24F, .08F, Corner}, {.78F, .10F, Corner}, {.60F, .45F}, {.50F, .95F}};
constexpr DigitShape kSeven[] = {kSevenPlain, kSevenBar, kSevenHook};

constexpr Knot kEightCrossed[] = {{.50F, .47F}, {.29F, .27F}, {.50F, .05F}, {.71F, .26F}, {.50F, .47F},
                                  {.24F, .72F}, {.50F, .95F}, {.77F, .72F}, {.50F, .47F}};
constexpr Knot kEightSnake[] = {{.74F, .16F}, {.50F, .05F}, {.28F, .22F}, {.48F, .46F}, {.74F, .70F},
                                {.52F, .95F}, {.25F, .76F}, {.50F, .48F}, {.74F, .16F}};
constexpr Knot kEightStacked[] = {{.52F, .44F}, {.32F, .25F}, {.52F, .05F}, {.70F, .24F}, {.52F, .44F, Lift},
                                  {.52F, .46F}, {.24F, .68F}, {.46F, .95F}, {.76F, .74F}, {.52F, .46F}};
constexpr DigitShape kEight[] = {kEightCrossed, kEightSnake, kEightStacked};

constexpr Knot kNineStraight[] = {{.72F, .26F}, {.48F, .05F},         {.26F, .26F}, {.42F, .50F},
                                  {.70F, .30F}, {.73F, .22F, Corner}, {.68F, .95F}};
constexpr Knot kNineCurved[] = {{.72F, .24F}, {.50F, .05F}, {.27F, .25F}, {.42F, .48F}, {.68F, .34F},
                                {.74F, .24F}, {.72F, .66F}, {.52F, .94F}, {.26F, .88F}};
constexpr Knot kNineSlanted[] = {{.74F, .14F}, {.46F, .08F},         {.24F, .32F}, {.38F, .52F},
                                 {.66F, .34F}, {.76F, .10F, Corner}, {.62F, .55F}, {.46F, .96F}};
constexpr DigitShape kNine[] = {kNineStraight, kNineCurved, kNineSlanted};

constexpr std::array<std::span<const DigitShape>, 10> kShapes = {kZero, kOne, kTwo,   kThree, kFour,
                                                                 kFive, kSix, kSeven, kEight, kNine};

}  // namespace

std::span<const DigitShape> shapes_of(size_t digit) { return kShapes[digit]; }

}  // namespace example

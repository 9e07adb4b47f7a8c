#pragma once

namespace tutti::simulation {

// Mistakes that a simulation can make on purpose, at the places where it connects the parts of the production
// code, or in its own copies of what LibTorch's part of that code does. Its checks have to find each of them.
// The first ones are mistakes that other systems have made (elastic training, November 2026).
enum class Mistake {
  None,
  StaleRate,        // torchtitan PR#4598: a joiner keeps its own learning rate
  SlotsOfTheStart,  // torchtitan PR#4422: hands over the optimiser's state as it was at the start
  ExportRacesStep,  // torchtitan PR#4754: hands over weights of two different steps
  OneBatchBehind,   // torchft#309: a joiner begins with the batch before
  HealsForEver,     // torchft PR#217: whoever has taken the state over asks for another change
  TwoRooms,         // torchft PR#70: half of the members see a list of their own
  StoppedIsDead,    // mlx#4278: a stopped worker is given up but not killed, and its place filled
  NobodyIsTold,     // mlx PR#4060: whoever waits for a lost worker is never released
  EmptyIsAnAnswer,  // mlx PR#4060: the end of a connection is read as a message without contents
  ReusedRoom,       // pytorch PR#192275: the epochs use one transport after the other under one name
  SameLife,         // a restart under the same name that is faster than the detection of the death
  HalfTakenOver,    // a failure during the recovery: whoever has half of a state believes in its own
  // Further ones.
  JoinersFirst,         // rank 0 of an epoch was not in the one before
  LeastFarLeads,        // the others follow the worker that has done least
  HooksAreForgotten,    // a joiner is not told which hooks were told of the last step
  EvictsCallers,        // evicts those that have called instead of those that have not
  LanesOfTheLastWorld,  // computes the lanes that it had in the epoch before
  EvictedLives,         // nobody kills an evicted worker
  StaysInFit,           // does not leave a fit that the others have left when a worker was lost at its end
  MarkBeforeData,       // says that its part of an update is whole before it is
  JoinsAnyFit,          // a joiner compares its plan with the others although they are in a later fit already
  // The mistakes below are made by launchers (launchers.h).
  KeeperDecidesAlone,  // the keeper begins an epoch on which the other launchers have not agreed
  MinorityGoesOn,      // a launcher takes the place of the keeper without enough votes
  VotesAreForgotten,   // a keeper takes another's place and does not hear what the launchers had agreed to
  // The mistakes below are made when checkpoints are saved (saving.h).
  FilesAreNotSynced,
  FoldersAreNotSynced,
  TakesOnlyTheLock,  // a new chief leaves what the former one has begun to write
  NobodyAsks,        // whether another chief saves there now
};

const char* name_of(Mistake mistake);

}  // namespace tutti::simulation

#include "tests/simulation/mistakes.h"

namespace tutti::simulation {

const char* name_of(Mistake mistake) {
  switch (mistake) {
    case Mistake::None:
      return "None";
    case Mistake::StaleRate:
      return "StaleRate";
    case Mistake::SlotsOfTheStart:
      return "SlotsOfTheStart";
    case Mistake::ExportRacesStep:
      return "ExportRacesStep";
    case Mistake::OneBatchBehind:
      return "OneBatchBehind";
    case Mistake::HealsForEver:
      return "HealsForEver";
    case Mistake::TwoRooms:
      return "TwoRooms";
    case Mistake::StoppedIsDead:
      return "StoppedIsDead";
    case Mistake::NobodyIsTold:
      return "NobodyIsTold";
    case Mistake::EmptyIsAnAnswer:
      return "EmptyIsAnAnswer";
    case Mistake::ReusedRoom:
      return "ReusedRoom";
    case Mistake::SameLife:
      return "SameLife";
    case Mistake::HalfTakenOver:
      return "HalfTakenOver";
    case Mistake::JoinersFirst:
      return "JoinersFirst";
    case Mistake::LeastFarLeads:
      return "LeastFarLeads";
    case Mistake::HooksAreForgotten:
      return "HooksAreForgotten";
    case Mistake::EvictsCallers:
      return "EvictsCallers";
    case Mistake::LanesOfTheLastWorld:
      return "LanesOfTheLastWorld";
    case Mistake::EvictedLives:
      return "EvictedLives";
    case Mistake::StaysInFit:
      return "StaysInFit";
    case Mistake::MarkBeforeData:
      return "MarkBeforeData";
    case Mistake::JoinsAnyFit:
      return "JoinsAnyFit";
    case Mistake::KeeperDecidesAlone:
      return "KeeperDecidesAlone";
    case Mistake::MinorityGoesOn:
      return "MinorityGoesOn";
    case Mistake::VotesAreForgotten:
      return "VotesAreForgotten";
    case Mistake::FilesAreNotSynced:
      return "FilesAreNotSynced";
    case Mistake::FoldersAreNotSynced:
      return "FoldersAreNotSynced";
    case Mistake::TakesOnlyTheLock:
      return "TakesOnlyTheLock";
    case Mistake::NobodyAsks:
      return "NobodyAsks";
  }
  return "";
}

}  // namespace tutti::simulation
